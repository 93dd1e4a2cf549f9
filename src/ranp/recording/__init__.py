"""What a pruning leaves behind for its report: plain values, complete and compact.

A record holds everything that the report shows and the page's slider needs, so that reports are
made from files alone, later, elsewhere, without the network and without torch.
"""

from ranp.recording.record import make_record, write_record
from ranp.recording.timelines import timeline_of

__all__ = ["make_record", "timeline_of", "write_record"]
