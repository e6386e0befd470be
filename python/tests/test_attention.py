"""attention() on NumPy arrays against a float64 evaluation: dtypes, shapes, strides and every option."""

import numpy as np
import pytest
from judge import check, operands

import tessera

ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed: NumPy has no bfloat16 without it")
DTYPES = [np.float64, np.float32, np.float16, ml_dtypes.bfloat16]

OPTIONS = {
    "plain": {},
    "causal": dict(causal=True),
    "window": dict(window=(7, 3)),
    "left window": dict(window=(5, -1)),
    "causal window": dict(causal=True, window=(9, 4)),
    "scale": dict(scale=-0.3),
    "scale 0": dict(scale=0.0),
    "softcap": dict(softcap=2.0),
    "softcap causal": dict(softcap=0.7, causal=True),
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: np.dtype(d).name)
def test_options(rng, dtype, options):
    q, k, v = operands(rng, dtype)
    o, lse = tessera.attention(q, k, v, return_lse=True, **options)
    assert type(o) is np.ndarray and o.dtype == q.dtype and o.flags.c_contiguous
    check(o, q, k, v, lse, **options)
    assert np.array_equal(tessera.attention(q, k, v, **options), o)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: np.dtype(d).name)
def test_score_operands(rng, dtype):
    q, k, v = operands(rng, dtype, batch=3)
    slopes = rng.uniform(0, 0.5, (3, 4)).astype(np.float32)
    sinks = np.array([0.5, -np.inf, 3.0, -2.0], np.float32)
    bias = rng.standard_normal((3, 4, 37, 53)).astype(np.float32)
    for options in (
        dict(alibi_slopes=slopes),
        dict(alibi_slopes=slopes[0]),
        dict(sinks=sinks),
        dict(bias=bias),
        dict(alibi_slopes=slopes, sinks=sinks, bias=bias, causal=True, softcap=3.0),
        dict(bias=bias.astype(dtype)),
    ):
        o, lse = tessera.attention(q, k, v, return_lse=True, **options)
        check(o, q, k, v, lse, **options)


@pytest.mark.parametrize(
    "shape", [(2, 4, 37, 53), (1, 4, 37, 53), (2, 1, 37, 53), (2, 4, 1, 53), (1, 1, 1, 53), (37, 53), (53,)], ids=str
)
@pytest.mark.parametrize("kind", ["float32", "bool", "uint8"])
def test_bias_broadcasts(rng, shape, kind):
    q, k, v = operands(rng, np.float32)
    if kind == "float32":
        bias = rng.standard_normal(shape).astype(np.float32)
    else:
        bias = (rng.uniform(size=shape) < 0.4).astype(kind)
    o, lse = tessera.attention(q, k, v, bias=bias, return_lse=True)
    check(o, q, k, v, lse, bias=bias)


def test_bias_with_strides_of_its_own(rng):
    q, k, v = operands(rng, np.float32)
    wide = rng.standard_normal((4, 37, 2, 60)).astype(np.float32)
    bias = wide.transpose(2, 0, 1, 3)[..., 3:56]
    check(tessera.attention(q, k, v, bias=bias), q, k, v, bias=bias)


@pytest.mark.parametrize("heads", [(1, 1), (6, 1), (6, 2), (6, 3), (6, 6)], ids=str)
@pytest.mark.parametrize("dims", [(1, 1), (8, 24), (40, 16), (64, 64), (129, 72)], ids=str)
def test_heads_and_head_dims(rng, heads, dims):
    q, k, v = operands(rng, np.float32, heads_q=heads[0], heads_kv=heads[1], dim=dims[0], dim_v=dims[1])
    o, lse = tessera.attention(q, k, v, causal=True, return_lse=True)
    check(o, q, k, v, lse, causal=True)


@pytest.mark.parametrize("lengths", [(1, 1), (1, 300), (300, 1), (64, 64), (65, 129), (130, 33)], ids=str)
def test_lengths(rng, lengths):
    q, k, v = operands(rng, np.float32, seqlen_q=lengths[0], seqlen_k=lengths[1])
    for options in ({}, dict(causal=True), dict(window=(3, 2))):
        o, lse = tessera.attention(q, k, v, return_lse=True, **options)
        check(o, q, k, v, lse, **options)


@pytest.mark.parametrize(
    "shape", [dict(batch=0), dict(seqlen_q=0), dict(seqlen_k=0), dict(seqlen_q=0, seqlen_k=0)], ids=str
)
def test_nothing_to_do_is_no_error(rng, shape):
    q, k, v = operands(rng, np.float32, **shape)
    o, lse = tessera.attention(q, k, v, return_lse=True)
    assert o.shape == q.shape and lse.shape == (q.shape[0], 4, q.shape[1])
    assert np.all(o == 0) and np.all(lse == -np.inf)


def test_rows_without_keys(rng):
    q, k, v = operands(rng, np.float32, seqlen_q=53, seqlen_k=37)
    o, lse = tessera.attention(q, k, v, causal=True, return_lse=True)
    assert np.all(o[:, :16] == 0) and not np.signbit(o[:, :16]).any() and np.all(lse[:, :, :16] == -np.inf)
    check(o, q, k, v, lse, causal=True)


def _strided(x, how):
    batch, seqlen, heads, dim = x.shape
    if how == "bhsd":
        return np.ascontiguousarray(x.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3)
    if how == "sbhd":
        return np.ascontiguousarray(x.transpose(1, 0, 2, 3)).transpose(1, 0, 2, 3)
    if how == "padded":
        wide = np.full((batch, seqlen, heads, dim + 5), np.nan, x.dtype)
        wide[..., 2 : dim + 2] = x
        return wide[..., 2 : dim + 2]
    if how == "every second row":
        wide = np.full((batch, 2 * seqlen, heads, dim), np.nan, x.dtype)
        wide[:, ::2] = x
        return wide[:, ::2]
    packed = np.full((batch, seqlen, 3, heads, dim), np.nan, x.dtype)
    packed[:, :, 1] = x
    return packed[:, :, 1]


@pytest.mark.parametrize("how", ["bhsd", "sbhd", "padded", "every second row", "one of three packed"])
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: np.dtype(d).name)
def test_strides_change_nothing(rng, dtype, how):
    arrays = operands(rng, dtype)
    expected = tessera.attention(*arrays, causal=True)
    strided = [_strided(x, how) for x in arrays]
    assert not any(x.flags.c_contiguous for x in strided)
    assert np.array_equal(tessera.attention(*strided, causal=True), expected)


def test_shared_keys_by_stride_zero(rng):
    q, k, v = operands(rng, np.float32, batch=3)
    k, v = (np.broadcast_to(x[:1], x.shape) for x in (k, v))
    check(tessera.attention(q, k, v), q, k, v)


def test_read_only_inputs(rng):
    q, k, v = operands(rng, np.float32)
    for x in (q, k, v):
        x.flags.writeable = False
    check(tessera.attention(q, k, v), q, k, v)


def test_inputs_stay_as_they_are(rng):
    arrays = operands(rng, np.float16)
    before = [x.copy() for x in arrays]
    tessera.attention(*arrays, causal=True)
    assert all(np.array_equal(x, y) for x, y in zip(arrays, before))


def test_thousand_keys_in_float64(rng):
    q, k, v = operands(rng, np.float64, 1, 1000, 1000, 1, 1, 64)
    x = np.einsum("id,jd->ij", q[0, :, 0], k[0, :, 0]) / 8
    p = np.exp(x - x.max(axis=1, keepdims=True))
    expected = (p / p.sum(axis=1, keepdims=True)) @ v[0, :, 0]
    assert np.abs(tessera.attention(q, k, v)[0, :, 0] - expected).max() < 4e-15
