"""Bad input: the exception's exact type, a message that names the argument, and a right next call."""

import numpy as np
import pytest
from judge import check, operands

import tessera


@pytest.fixture
def arrays(rng):
    return operands(rng, np.float32, batch=2, seqlen_q=8, seqlen_k=12, heads_q=4, heads_kv=2, dim=16)


def _zeros(*shape, dtype=np.float32):
    return np.zeros(shape, dtype)


# name: (changes to q, k, v, changes to the options, exception, words of the message)
CASES = {
    "a list": ({"q": [1.0]}, {}, TypeError, ["q", "list"]),
    "None": ({"k": None}, {}, TypeError, ["k", "NoneType"]),
    "3 dimensions": ({"q": _zeros(8, 4, 16)}, {}, ValueError, ["q", "[8, 4, 16]"]),
    "int64": ({"v": _zeros(2, 12, 2, 16, dtype=np.int64)}, {}, ValueError, ["v", "int64"]),
    "int32": ({n: _zeros(2, 12, 4, 16, dtype=np.int32) for n in "qkv"}, {}, ValueError, ["q"]),
    "uint8": ({n: _zeros(2, 12, 4, 16, dtype=np.uint8) for n in "qkv"}, {}, (ValueError, NotImplementedError), ["q"]),
    "big endian": ({"q": _zeros(2, 8, 4, 16, dtype=">f4")}, {}, ValueError, ["q"]),
    "complex": ({"q": _zeros(2, 8, 4, 16, dtype=np.complex64)}, {}, ValueError, ["q", "complex64"]),
    "mixed dtypes": ({"k": _zeros(2, 12, 2, 16, dtype=np.float16)}, {}, ValueError, ["k"]),
    "k of another batch": ({"k": _zeros(3, 12, 2, 16)}, {}, ValueError, ["k", "batch", "3", "2"]),
    "k of another dim": ({"k": _zeros(2, 12, 2, 17)}, {}, ValueError, ["k", "17", "16"]),
    "v of another length": ({"v": _zeros(2, 13, 2, 16)}, {}, ValueError, ["v", "13", "12"]),
    "v of other heads": ({"v": _zeros(2, 12, 4, 16)}, {}, ValueError, ["v", "heads", "4", "2"]),
    "heads 4 and 3": ({"k": _zeros(2, 12, 3, 16), "v": _zeros(2, 12, 3, 16)}, {}, ValueError, ["heads", "4", "3"]),
    "heads 4 and 0": ({"k": _zeros(2, 12, 0, 16), "v": _zeros(2, 12, 0, 16)}, {}, ValueError, ["heads_kv", "0"]),
    "no dim": ({n: _zeros(2, 12, 4, 0) for n in "qkv"}, {}, ValueError, ["head_dim", "0"]),
    "dim reversed": ({"q": _zeros(2, 8, 4, 16)[..., ::-1]}, {}, ValueError, ["q", "-1"]),
    "rows reversed": ({"q": _zeros(2, 8, 4, 16)[:, ::-1]}, {}, ValueError, ["q", "stride", "-64"]),
    "every second element": ({"k": _zeros(2, 12, 2, 32)[..., ::2]}, {}, ValueError, ["k", "stride", "2"]),
    "one element for all": ({"q": np.broadcast_to(np.float32(1), (2, 8, 4, 16))}, {}, ValueError, ["q", "stride"]),
    "masked": ({"q": np.ma.zeros((2, 8, 4, 16), np.float32)}, {}, TypeError, ["q", "mask"]),
    "odd byte stride": (
        {"q": np.lib.stride_tricks.as_strided(_zeros(4096), (2, 8, 4, 16), (1024 + 2, 128, 64, 4))},
        {},
        ValueError,
        ["q", "1026"],
    ),
    "window of one": ({}, {"window": (3,)}, ValueError, ["window"]),
    "window of text": ({}, {"window": ("a", 1)}, TypeError, ["window"]),
    "window of fractions": ({}, {"window": (1.5, 1)}, TypeError, ["window", "1.5"]),
    "window a number": ({}, {"window": 3}, ValueError, ["window", "3"]),
    "scale of text": ({}, {"scale": "a"}, TypeError, ["scale", "a"]),
    "softcap None": ({}, {"softcap": None}, TypeError, ["softcap", "None"]),
    "window -2": ({}, {"window": (-2, -1)}, ValueError, ["-2"]),
    "window beyond 64 bits": ({}, {"window": (2**64, -1)}, ValueError, ["window"]),
    "scale nan": ({}, {"scale": float("nan")}, ValueError, ["scale"]),
    "scale inf": ({}, {"scale": float("inf")}, ValueError, ["scale"]),
    "softcap -1": ({}, {"softcap": -1.0}, ValueError, ["softcap", "-1"]),
    "softcap nan": ({}, {"softcap": float("nan")}, ValueError, ["softcap"]),
    "alibi shape": ({}, {"alibi_slopes": _zeros(3)}, ValueError, ["alibi_slopes", "[3]", "[4]"]),
    "alibi dtype": ({}, {"alibi_slopes": _zeros(4, dtype=np.float64)}, ValueError, ["alibi_slopes", "float64"]),
    "alibi stride": ({}, {"alibi_slopes": _zeros(8)[::2]}, ValueError, ["alibi_slopes", "stride"]),
    "sinks shape": ({}, {"sinks": _zeros(4, 1)}, ValueError, ["sinks", "[4, 1]"]),
    "sinks dtype": ({}, {"sinks": _zeros(4, dtype=np.float16)}, ValueError, ["sinks", "float16"]),
    "bias shape": ({}, {"bias": _zeros(2, 3, 8, 12)}, ValueError, ["bias", "[2, 3, 8, 12]"]),
    "bias of one key": ({}, {"bias": _zeros(2, 4, 8, 1)}, ValueError, ["bias", "12"]),
    "bias of 5 dims": ({}, {"bias": _zeros(1, 2, 4, 8, 12)}, ValueError, ["bias"]),
    "bias dtype": ({}, {"bias": _zeros(2, 4, 8, 12, dtype=np.float64)}, ValueError, ["bias"]),
    "bias int8": ({}, {"bias": _zeros(2, 4, 8, 12, dtype=np.int8)}, ValueError, ["bias"]),
    "bias reversed": ({}, {"bias": _zeros(2, 4, 8, 12)[:, :, ::-1]}, ValueError, ["bias", "stride"]),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_bad_call(arrays, case):
    changes, options, exception, words = case
    q, k, v = (changes.get(name, x) for name, x in zip("qkv", arrays))
    with pytest.raises(exception) as caught:
        tessera.attention(q, k, v, **options)
    assert caught.type in (exception if isinstance(exception, tuple) else (exception,))
    message = str(caught.value)
    assert all(word in message for word in words), message
    check(tessera.attention(*arrays), *arrays)


def test_unsupported_gives_every_reason():
    arrays = [_zeros(1, 4, 1, 1000)] * 3
    with pytest.raises(NotImplementedError) as caught:
        tessera.attention(*arrays)
    assert "head_dim" in str(caught.value) and "1000" in str(caught.value) and "cpu." in str(caught.value)
    assert caught.type is NotImplementedError


def test_a_pinned_kernel_that_does_not_exist(arrays, monkeypatch):
    check(tessera.attention(*arrays), *arrays)
    monkeypatch.setenv("TESSERA_KERNEL", "cpu.nothing.*")
    with pytest.raises(NotImplementedError) as caught:
        tessera.attention(*arrays)
    assert "cpu.nothing.*" in str(caught.value)
    monkeypatch.delenv("TESSERA_KERNEL")
    check(tessera.attention(*arrays), *arrays)


@pytest.mark.parametrize(
    "text",
    ["", "fwd", "fwd f32 sq8 d16 nonsense", "fwd f32 sq-8 d16", "fwd f32 hq3 hkv2 sq8 d16", "fwd f32 sq8 d16\0 x"],
)
def test_bad_problem_text(text):
    for call in (tessera.Plan, tessera.explain, tessera.supports):
        with pytest.raises(ValueError) as caught:
            call(text)
        assert caught.type is ValueError and str(caught.value)


def test_bad_problem_fields():
    for fields, word in (
        ({"nothing": 1}, "nothing"),
        ({"batch": 2**64}, "batch"),
        ({"heads_q": 2**31}, "heads_q"),
        ({"kernel": "x" * 65}, "kernel"),
    ):
        with pytest.raises(ValueError) as caught:
            tessera.Problem(**fields)
        assert word in str(caught.value)
    for call in (tessera.Plan, tessera.explain, tessera.supports):
        with pytest.raises(TypeError, match="problem"):
            call(7)


def test_no_device_is_a_runtime_error_or_runs():
    problem = tessera.Problem("fwd bf16 sq8 d64 cuda")
    problem.device = 99
    with pytest.raises(RuntimeError) as caught:
        tessera.Plan(problem)
    assert caught.type is RuntimeError and str(caught.value)


@pytest.mark.parametrize(
    "field, value", [("total_q", 2**70), ("batch", 2**64 + 2), ("heads_q", 2**32 + 4), ("left", -(2**63) - 1)]
)
def test_a_field_takes_no_number_that_does_not_fit(field, value):
    problem = tessera.Problem("f32 b2 hq4 hkv2 sq8 d16")
    before = getattr(problem, field)
    with pytest.raises(ValueError, match=field):
        setattr(problem, field, value)
    assert getattr(problem, field) == before


def test_a_field_that_does_not_exist_is_not_made():
    problem = tessera.Problem("f32 b2 hq4 hkv2 sq8 d16")
    for field in ("sqlen_q", "num_split", "Batch"):
        with pytest.raises(AttributeError, match=field):
            setattr(problem, field, 3)
    problem.num_splits = 3
    problem.kernel = "cpu.*"
    assert "splits=3" in str(problem) and "kernel=cpu.*" in str(problem)
