"""What cannot be traced says so in one line; what looks hard but can be traced, is."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ranp.errors import TraceError, UsageError
from ranp.graph import Divergence, build_graph, check, rule, unwrap
from ranp.graph.operation import RULES
from ranp.graph.tracing import Mode
from ranp.slimming import slim_model
from tests.oracle import compare, random_alive, randomize_, unchanged
from tests.zoo.case import Net, conv, floats

IMAGE = (2, 3, 6, 6)


@torch.library.custom_op("ranp_tests::mystery", mutates_args=())
def mystery(x: Tensor) -> Tensor:
    return x.flip(1) * 2


@mystery.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


def chain(middle=lambda x: x) -> Net:
    def run(net: Net, x):
        return net.head(F.relu(net.b(middle(F.relu(net.a(x))))))

    return Net(run, a=conv(3, 8), b=conv(8, 6), head=conv(6, 2))


def removable(graph) -> dict[str, int]:
    return {n: int(graph.removable[layer.neurons].sum()) for n, layer in graph.layers.items()}


def one_line(error: pytest.ExceptionInfo[Exception]) -> str:
    message = str(error.value)
    assert "\n" not in message
    return message


def test_operation_without_a_rule_is_refused_with_a_way_out() -> None:
    model = nn.Sequential(conv(3, 8), nn.ReLU(), chain(mystery))
    model[2].a = conv(8, 8)
    with unchanged(model), pytest.raises(TraceError) as error:
        build_graph(model, IMAGE)
    message = one_line(error)
    assert "ranp_tests::mystery" in message and "'2'" in message
    assert "protect=['2.a']" in message and "ranp.graph.rule" in message
    assert error.value.exit_code == 5

    graph = build_graph(model, IMAGE, protect=["2.a"])
    assert removable(graph) == {"0": 8, "2.a": 0, "2.b": 6, "2.head": 0}
    result = compare(model, graph, random_alive(graph, 0.5), floats(IMAGE)())
    assert result.error <= 1e-10 < result.effect


def test_a_rule_for_a_foreign_operation() -> None:
    @rule("ranp_tests::mystery")
    def reverse(p, op):
        dims = p.dims(op["x"])
        return (dims[0], dims[1][::-1], *dims[2:])

    try:
        model = chain(mystery)
        graph = build_graph(model, IMAGE)
    finally:
        del RULES["ranp_tests::mystery"]
    assert removable(graph) == {"a": 8, "b": 6, "head": 0}
    alive = random_alive(graph, 0.5)
    assert compare(model, graph, alive, floats(IMAGE)()).error <= 1e-10


def test_a_rule_that_fails_is_named() -> None:
    @rule("ranp_tests::mystery")
    def broken(p, op):
        raise KeyError("no such thing")

    try:
        with pytest.raises(TraceError, match="the rule for ranp_tests::mystery fails"):
            build_graph(chain(mystery), IMAGE)
    finally:
        del RULES["ranp_tests::mystery"]


def test_recurrent_layers_are_refused_and_can_be_fed_by_protected_ones() -> None:
    def run(net: Net, x):
        return net.head(net.lstm(F.relu(net.enter(x)))[0])

    model = Net(run, enter=nn.Linear(4, 8), lstm=nn.LSTM(8, 5), head=nn.Linear(5, 2))
    with pytest.raises(TraceError, match=r"protect=\['enter'\]"):
        build_graph(model, (7, 2, 4))
    assert removable(build_graph(model, (7, 2, 4), protect=["enter"])) == {"enter": 0, "head": 0}


def test_forward_that_raises() -> None:
    def middle(x):
        raise ZeroDivisionError("the reactor is cold")

    with pytest.raises(TraceError) as error:
        build_graph(nn.Sequential(conv(3, 3), chain(middle)), IMAGE)
    assert "'1'" in one_line(error) and "ZeroDivisionError: the reactor is cold" in str(error.value)


@pytest.mark.parametrize("shape", [(3, 6), (2, 4, 6, 6), (2, 3, 6, 6, 6)])
def test_input_that_does_not_fit(shape: tuple[int, ...]) -> None:
    with pytest.raises(TraceError) as error:
        build_graph(chain(), shape)
    assert "'a'" in one_line(error) and "check the example input" in str(error.value)


@pytest.mark.parametrize("example", ["image", (), (2, 3, 0, 6), 7])
def test_example_that_is_none(example: object) -> None:
    with pytest.raises(UsageError):
        build_graph(chain(), example)


@pytest.mark.parametrize(
    "decide",
    [
        lambda x: x if x.sum() > 0 else -x,
        lambda x: x * x.mean().item(),
        lambda x: x[:, x.abs().amax((0, 2, 3)).numpy() > 0],
        lambda x: x[x > 0].reshape(-1, 8, 1, 1),
    ],
    ids=["if", "item", "numpy", "boolean index"],
)
def test_values_that_decide(decide) -> None:
    with pytest.raises(TraceError, match=r"needs the values of a tensor \(\w+.py:\d+\)") as error:
        build_graph(chain(decide), IMAGE)
    one_line(error)


def test_model_that_cannot_be_copied() -> None:
    model = chain()
    model.log = (line for line in ())
    with pytest.raises(TraceError, match="cannot be copied"):
        build_graph(model, IMAGE)


def test_a_model_that_remembers_its_last_results_is_copied() -> None:
    """As MONAI's DynUNet keeps its heads in a list, once it has been run in train mode."""
    model = chain()
    untouched = removable(build_graph(model, IMAGE))
    result = model(torch.rand(2, 3, 6, 6))
    model.last = result
    model.heads = [result, {"second": (2 * result,)}]
    model.heads.append(model.heads)
    assert removable(build_graph(model, IMAGE)) == untouched
    assert model.heads[0] is result
    assert result.grad_fn is not None


@pytest.mark.parametrize(
    ("protect", "free"),
    [
        (["a"], {"a": 0, "b": 6, "head": 0}),
        (["[ab]"], {"a": 0, "b": 0, "head": 0}),
        (["*"], {"a": 0, "b": 0, "head": 0}),
        ([], {"a": 8, "b": 6, "head": 0}),
    ],
)
def test_protected_layers(protect: list[str], free: dict[str, int]) -> None:
    graph = build_graph(chain(), IMAGE, protect=protect)
    assert removable(graph) == free
    reasons = {graph.pinned.get(c) for c in graph.layers["a"].neurons.tolist()}
    assert reasons == ({"it is protected by the user"} if free["a"] == 0 else {None})


def test_protecting_a_module_protects_what_is_inside() -> None:
    model = nn.Sequential(chain(), nn.ReLU(), conv(2, 4), conv(4, 2))
    graph = build_graph(model, IMAGE, protect=["0"])
    assert removable(graph) == {"0.a": 0, "0.b": 0, "0.head": 0, "2": 4, "3": 0}


def test_unknown_protected_name_gets_a_suggestion() -> None:
    with pytest.raises(UsageError, match=r"no layer is called 'haed'\. Did you mean 'head'\?"):
        build_graph(chain(), IMAGE, protect=["haed"])


def test_hard_coded_numbers_are_noted() -> None:
    graph = build_graph(chain(lambda x: x.view(2, 8, -1).view(2, 8, 6, 6)), IMAGE)
    (note,) = graph.notes
    assert "the network's own forward" in note and "the channels concerned stay" in note
    reasons = {graph.pinned[c] for c in graph.layers["a"].neurons.tolist()}
    assert reasons == {"channel numbers are fixed by the code (view) in the network's own forward"}


class Viewed(nn.Module):
    """Features become an image of a size that stands in the code."""

    def __init__(self, size: tuple[int, int, int]) -> None:
        super().__init__()
        self.size = size
        self.a = nn.Linear(10, 32)
        self.b = nn.Conv2d(size[0], 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.a(x).view(-1, *self.size))


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        ((8, 2, 2), "the network's own forward fails: RuntimeError: shape '[-1, 8, 2, 2]' is"),
        ((1, 8, 4), "view in Viewed lays channels along space: the channels concerned stay"),
    ],
)
def test_features_that_become_an_image_say_why_they_stay(size, expected: str) -> None:
    graph = build_graph(Viewed(size), (2, 10))
    assert removable(graph) == {"a": 0, "b": 0}
    (note,) = graph.notes
    assert expected in note


def test_a_width_checked_by_python_code() -> None:
    class Strict(nn.Module):
        def forward(self, x):
            if x.shape[1] != 8:
                raise ValueError("I want 8 channels")
            return x

    model = nn.Sequential(conv(3, 8), Strict(), conv(8, 6), nn.ReLU(), conv(6, 2))
    graph = build_graph(model, IMAGE)
    assert removable(graph) == {"0": 0, "2": 6, "4": 0}
    assert "I want 8 channels" in graph.notes[0]


def test_train_mode_out_of_reach_is_noted() -> None:
    model = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 8), nn.BatchNorm1d(8))
    graph = build_graph(model, (1, 3, 4, 4))
    assert "train mode could not be traced" in graph.notes[0]
    assert set(graph.passes) == {Mode(False)}


def test_wrappers_are_opened(tmp_path) -> None:
    model = chain()
    assert unwrap(nn.DataParallel(model)) is model
    assert unwrap(torch.compile(model, backend="eager")) is model
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1
    )
    try:
        wrapped = nn.parallel.DistributedDataParallel(torch.compile(model, backend="eager"))
        graph = build_graph(wrapped, IMAGE)
        slim = slim_model(wrapped, graph, random_alive(graph, 0.5))
    finally:
        torch.distributed.destroy_process_group()
    assert list(graph.layers) == ["a", "b", "head"]
    assert type(slim) is Net


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_dtypes_and_frozen_parameters_carry_over(dtype: torch.dtype) -> None:
    model = chain().to(dtype)
    model.a.requires_grad_(False)
    with unchanged(model):
        graph = build_graph(model, IMAGE)
        slim = slim_model(model, graph, random_alive(graph, 0.5))
    assert graph.inputs.args[0].dtype == dtype
    assert {p.dtype for p in slim.parameters()} == {dtype}
    assert {n for n, p in slim.named_parameters() if not p.requires_grad} == {"a.weight", "a.bias"}
    assert slim(torch.randn(IMAGE, dtype=dtype)).shape == (2, 2, 6, 6)


def test_hooks_are_part_of_the_network() -> None:
    model = randomize_(chain()).double().eval()
    calls = []
    model.a.register_forward_hook(lambda module, inputs, output: output.square())
    model.b.register_forward_pre_hook(lambda module, inputs: calls.append(type(inputs[0])))
    with unchanged(model):
        graph = build_graph(model, IMAGE)
        alive = random_alive(graph, 0.5)
        result = compare(model, graph, alive, floats(IMAGE)())
    assert result.error <= 1e-10 < result.effect
    assert len(slim_model(model, graph, alive).a._forward_hooks) == 1


def test_modes_carry_over() -> None:
    model = chain().train()
    model.b.eval()
    graph = build_graph(model, IMAGE)
    slim = slim_model(model, graph, random_alive(graph, 0.5))
    assert (slim.training, slim.a.training, slim.b.training) == (True, True, False)


def test_an_input_of_keywords() -> None:
    model = Net(lambda net, *, image, factor: net.head(net.a(image) * factor), a=conv(3, 8))
    model.head = conv(8, 2)
    graph = build_graph(model, {"image": torch.randn(IMAGE), "factor": 2.0})
    assert removable(graph) == {"a": 8, "head": 0}


def test_nothing_is_allocated() -> None:
    graph = build_graph(chain(), (64, 3, 4096, 4096))  # 200 GB of activations
    assert removable(graph) == {"a": 8, "b": 6, "head": 0}


def test_the_check_pass_objects_to_a_wrong_slim_model() -> None:
    model = chain()
    graph = build_graph(model, IMAGE)
    alive = random_alive(graph, 0.5)
    slim = slim_model(model, graph, alive)
    check(slim, graph, alive)
    slim.b = conv(slim.a.out_channels, slim.b.out_channels + 1)
    with pytest.raises(Divergence, match="gives the shape"):
        check(slim, graph, alive)


@pytest.mark.parametrize(
    ("scale", "removable_neurons"),
    [
        (lambda x: x / x.shape[1], {"a": 0, "b": 6, "head": 0}),
        (lambda x: x * math.sqrt(x.size(1)), {"a": 0, "b": 6, "head": 0}),
        (lambda x: F.group_norm(x, x.shape[1] // 4), {"a": 0, "b": 6, "head": 0}),
        (lambda x: F.group_norm(x, x.shape[1]), {"a": 8, "b": 6, "head": 0}),
        (lambda x: x / 7, {"a": 8, "b": 6, "head": 0}),
    ],
)
def test_row_41_values_that_depend_on_the_channel_count_pin_the_channels(
    scale, removable_neurons: dict[str, int]
) -> None:
    model = chain(scale)
    graph = build_graph(model, IMAGE)
    assert removable(graph) == removable_neurons
    noted = " ".join(graph.notes)
    assert ("computes other values (test_refusals.py:" in noted) == (removable_neurons["a"] == 0)
    if "group_norm" not in noted and removable_neurons["a"] == 0:
        assert compare(model, graph, random_alive(graph, 0.5), floats(IMAGE)()).error <= 1e-10


@pytest.mark.parametrize(
    "scale",
    [
        lambda x: x - x.sum(1, keepdim=True) / x.size(1),
        lambda x: x / torch.tensor(float(x.shape[1])),
        lambda x: x * torch.full((1,), x.shape[1]),
    ],
)
def test_row_41_values_that_cannot_be_pinned_are_refused_by_line(scale) -> None:
    with pytest.raises(TraceError, match=r"computes other values \(test_refusals.py:\d+\)") as e:
        build_graph(chain(scale), IMAGE)
    assert "protect" in one_line(e)
    assert removable(build_graph(chain(scale), IMAGE, protect=["a"]))["a"] == 0


def _with_weight(make) -> nn.Module:
    model = chain()
    model.a.weight = nn.Parameter(make(model.a.weight.detach()), requires_grad=False)
    return model


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: torch.jit.script(nn.Conv2d(3, 8, 3)), "nn.Module with Python code"),
        (
            lambda: nn.Sequential(torch.jit.script(nn.Conv2d(3, 8, 3))),
            "its module '0' must be an nn.M",
        ),
        (lambda: _with_weight(lambda w: w.to(torch.complex64)), "'a.weight' must be real"),
        (lambda: _with_weight(lambda w: w.to_sparse()), "'a.weight' must be dense"),
        (lambda: nn.Sequential(nn.LazyConv2d(8, 3)), "'0.weight' has no shape yet"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:Lazy modules:UserWarning")
def test_models_that_have_no_channels_to_trace(make, expected: str) -> None:
    with pytest.raises(UsageError, match=expected) as error:
        build_graph(make(), IMAGE)
    one_line(error)


def test_a_sparse_example_input() -> None:
    with pytest.raises(UsageError, match="example input must be dense"):
        build_graph(chain(), torch.zeros(IMAGE).to_sparse())


class Orthogonal(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.utils.parametrizations.orthogonal(nn.Conv2d(2, 8, 1))
        self.b = nn.Conv2d(8, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.a(x))


class Shuffled(nn.Module):
    """Groups tie every second channel, the shuffle between them all the others."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Conv2d(8, 8, 1, groups=2)
        self.b = nn.Conv2d(8, 8, 1, groups=4)
        self.c = nn.Conv2d(8, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        n, channels, *size = (x := self.a(x)).shape
        x = x.view(n, 4, channels // 4, *size).transpose(1, 2).reshape(n, channels, *size)
        return self.c(self.b(x))


@pytest.mark.parametrize(
    ("network", "channels", "reason"),
    [
        (Orthogonal, 2, "its weight is computed in a way that fixes its size"),
        (Shuffled, 8, "all its channels are tied to one another in the network's own forward"),
    ],
)
def test_layers_that_stay_say_why(network: type[nn.Module], channels: int, reason: str) -> None:
    graph = build_graph(network(), (1, channels, 4, 4))
    assert {graph.pinned[c] for c in graph.layers["a"].neurons.tolist()} == {reason}


class CountedElsewhere(nn.Module):
    """The channels of one layer are taken apart by the number of another's."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Conv2d(1, 4, 1)
        self.b = nn.Sequential(nn.Conv1d(4 * 8, 6, 1), nn.Conv1d(6, 4 * 8, 1))
        self.c = nn.Conv2d(8, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        n, channels, depth, width = (x := self.a(x)).shape
        y = self.b(x.reshape(n, channels * depth, width))
        return self.c(torch.cat([x, y.reshape(n, channels, depth, width)], dim=1))


def test_what_counts_other_channels_says_what_to_protect() -> None:
    with pytest.raises(TraceError, match=r"whose channels it counts \(protect=\['NAME'\]\)"):
        build_graph(CountedElsewhere(), (1, 1, 8, 8))
    build_graph(CountedElsewhere(), (1, 1, 8, 8), protect=["a"])
