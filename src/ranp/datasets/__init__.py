"""The data sets of the paper as they lie on disk, and generators that write the same formats.

Everything here works on NumPy arrays alone; torch enters in `cases` (samples as tensors) and
`loader` (batches). `registry` names the kinds and can be imported without torch.
"""
