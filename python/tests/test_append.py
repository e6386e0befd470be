"""tessera.append: rows into caches of every layout and dtype, rotary embedding, quantisation, and wrong arguments."""

import numpy as np
import pytest
from judge import check

import tessera

ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed: NumPy has no bfloat16 without it")
BATCH, ROOM, HEADS, DIM = 3, 40, 2, 24
LENGTHS = np.array([5, 0, 33], np.int32)


def _cache(dtype=np.float32):
    return [np.full((BATCH, ROOM, HEADS, DIM), 99, dtype) for _ in "kv"]


def _rows(rng, count=4, dtype=np.float32):
    return [rng.standard_normal((BATCH, count, HEADS, DIM)).astype(dtype) for _ in "kv"]


def _tables(positions=40, half=8, dtype=np.float32):
    angle = np.outer(np.arange(positions), 0.3 ** np.arange(half))
    return np.cos(angle).astype(dtype), np.sin(angle).astype(dtype)


def _turn(x, cos, sin, position, interleaved):
    """One token [heads, dim] in float64."""
    x, half = x.astype(np.float64), cos.shape[1]
    c, s = cos[position].astype(np.float64), sin[position].astype(np.float64)
    first, second = (
        (slice(0, 2 * half, 2), slice(1, 2 * half, 2)) if interleaved else (slice(0, half), slice(half, 2 * half))
    )
    turned = x.copy()
    turned[:, first] = x[:, first] * c - x[:, second] * s
    turned[:, second] = x[:, first] * s + x[:, second] * c
    return turned


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, ml_dtypes.bfloat16], ids=lambda d: d.__name__)
def test_dense(rng, dtype):
    caches, new = _cache(dtype), _rows(rng, dtype=dtype)
    assert tessera.append(*caches, *new, LENGTHS) is None
    for cache, x in zip(caches, new):
        for b, n in enumerate(LENGTHS):
            assert np.array_equal(cache[b, n : n + 4], x[b])
            assert np.all(cache[b, :n] == 99) and np.all(cache[b, n + 4 :] == 99)


def test_converted_into_picked_rows_and_pages(rng):
    new = _rows(rng)
    caches, rows = _cache(np.float16), np.array([2, 0, 1], np.int32)
    tessera.append(*caches, *new, LENGTHS, batch_idx=rows)
    pages = [np.full((9, 16, HEADS, DIM), 99, np.float16) for _ in "kv"]
    table = rng.permutation(9).reshape(3, 3).astype(np.int32)
    tessera.append(*pages, *new, LENGTHS, page_table=table)
    for cache, page, x in zip(caches, pages, new):
        for b, n in enumerate(LENGTHS):
            assert np.array_equal(cache[rows[b], n : n + 4], x[b].astype(np.float16))
            assert np.array_equal(page[table[b]].reshape(48, HEADS, DIM)[n : n + 4], x[b].astype(np.float16))


def test_a_float8_cache(rng):
    caches, new = _cache(ml_dtypes.float8_e4m3fn), _rows(rng)
    scale = np.full(HEADS, 1 / 64, np.float32)
    tessera.append(*caches, *new, LENGTHS, k_scale=scale)
    for cache, x, unit in zip(caches, new, (1 / 64, 1)):
        for b, n in enumerate(LENGTHS):
            right = (x[b] / np.float32(unit)).astype(ml_dtypes.float8_e4m3fn)
            assert np.array_equal(cache[b, n : n + 4].view(np.uint8), right.view(np.uint8))


def test_ragged(rng):
    caches, new = _cache(), [x.reshape(12, HEADS, DIM) for x in _rows(rng)]
    tessera.append(*caches, *new, LENGTHS, cu_seqlens_new=np.array([0, 1, 9, 12], np.int32), max_seqlen_new=8)
    for cache, x in zip(caches, new):
        assert np.array_equal(cache[0, 5:6], x[:1])
        assert np.array_equal(cache[1, :8], x[1:9])
        assert np.array_equal(cache[2, 33:36], x[9:])
    with pytest.raises(ValueError, match="max_seqlen_new: missing"):
        tessera.append(*caches, *new, LENGTHS, cu_seqlens_new=np.array([0, 1, 9, 12], np.int32))


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("banded", [False, True])
def test_rotary(rng, interleaved, banded):
    caches, (k, v), (cos, sin) = _cache(), _rows(rng), _tables()
    q = rng.standard_normal((BATCH, 2, 6, DIM)).astype(np.float32)
    turned = tessera.append(
        *caches, k, v, LENGTHS, q=q, rotary_cos=cos, rotary_sin=sin, rotary_interleaved=interleaved, banded=banded
    )
    for b, n in enumerate(LENGTHS):
        for t in range(4):
            assert np.allclose(caches[0][b, n + t], _turn(k[b, t], cos, sin, n + t, interleaved), atol=1e-6)
        for i in range(2):
            right = _turn(q[b, i], cos, sin, n + (i if banded else 0), interleaved)
            assert np.allclose(turned[b, i], right, atol=1e-6)
    again = _cache()  # and without a query
    tessera.append(*again, k, v, LENGTHS, rotary_cos=cos, rotary_sin=sin, rotary_interleaved=interleaved)
    assert all(np.array_equal(x, y) for x, y in zip(caches, again))


def test_an_int8_cache_and_attention_over_it(rng):
    caches, lengths = _cache(np.int8), np.zeros(BATCH, np.int32)
    k_scale, v_scale = (rng.uniform(0.02, 0.04, (BATCH, 1, HEADS)).astype(np.float32) for _ in "kv")
    k, v = _rows(rng, ROOM)
    q = rng.standard_normal((BATCH, 1, 6, DIM)).astype(np.float32)
    cos, sin = _tables()
    turned = tessera.append(
        *caches, k, v, lengths, q=q, rotary_cos=cos, rotary_sin=sin, k_scale=k_scale, v_scale=v_scale
    )
    exact = np.stack([[_turn(k[b, t], cos, sin, t, False) for t in range(ROOM)] for b in range(BATCH)])
    stored_k, stored_v = caches[0] * k_scale[..., None].astype(np.float64), caches[1] * v_scale[..., None]
    for stored, right, scale in ((stored_k, exact, k_scale), (stored_v, v, v_scale)):
        clipped = np.clip(right, -127 * scale[..., None], 127 * scale[..., None])
        assert np.all(np.abs(stored - clipped) <= 0.501 * scale[..., None])
    o = tessera.attention(turned, *caches, k_scale=k_scale, v_scale=v_scale)
    check(o, turned, stored_k, caches[1] * v_scale[..., None].astype(np.float64))


def _with_q(shape, dtype=np.float32):
    cos, sin = _tables(37)
    return dict(q=np.zeros(shape, dtype), rotary_cos=cos, rotary_sin=sin)


@pytest.mark.parametrize(
    "change, words",
    [
        (dict(seqused_k=np.array([5, 0, 37], np.int32)), ["seqused_k[2] is 37", "4 new rows", "40"]),
        (dict(seqused_k=LENGTHS.astype(np.int64)), ["seqused_k", "int64"]),
        (dict(k=np.zeros((BATCH, 4, HEADS, 8), np.float32)), ["k: shape [3, 4, 2, 8]", "[3, 4, 2, 24]"]),
        (dict(v=np.zeros((BATCH, 3, HEADS, DIM), np.float32)), ["v: shape [3, 3, 2, 24]"]),
        (dict(k=np.zeros((BATCH, 4, HEADS, DIM), np.float64)), ["k: dtype float64", "float32, float16, bfloat16"]),
        (dict(v=np.zeros((BATCH, 4, HEADS, DIM), np.int8)), ["v: dtype int8", "float32, float16, bfloat16"]),
        (dict(k=np.zeros((BATCH, 4, HEADS, 2 * DIM), np.float32)[..., ::2]), ["k: stride 2 of its last dimension"]),
        (dict(v=np.zeros((BATCH, 4, HEADS, 2 * DIM), np.float32)[..., ::2]), ["v: stride 2 of its last dimension"]),
        (dict(seqused_k=np.zeros((3, 2), np.int32)[:, 0]), ["seqused_k: stride 2"]),
        (dict(seqused_k=np.zeros((3, 1), np.int32)), ["seqused_k: shape [3, 1]", "[batch]"]),
        (dict(seqused_k=np.array([5, -2, 0], np.int32)), ["seqused_k[1] is -2"]),
        (dict(page_table=np.zeros((2, 1), np.int32)), ["page_table: shape [2, 1]", "[3, 1]"]),
        (dict(page_table=np.array([[0], [1], [-1]], np.int32)), ["page_table[2, 0] is -1"]),
        (dict(page_table=np.zeros((3, 1))), ["page_table: dtype float64", "int32"]),
        (dict(batch_idx=np.zeros(2, np.int32)), ["batch_idx: shape [2]", "[3]"]),
        (dict(k_scale=np.ones((2,), np.float32)), ["k_scale", "int8"]),
        (dict(max_seqlen_new="4", cu_seqlens_new=LENGTHS), ["max_seqlen_new: expected a whole number, not '4'"]),
        (dict(cu_seqlens_q=LENGTHS), ["cu_seqlens_q: given without q"]),
        (dict(max_seqlen_new=-2, cu_seqlens_new=LENGTHS), ["max_seqlen_new: -2, expected 0 to 2147483647"]),
        (dict(max_seqlen_new=4), ["max_seqlen_new: 4 given without cu_seqlens_new"]),
        (dict(max_seqlen_q=-7), ["max_seqlen_q: -7 given without cu_seqlens_q"]),
        (dict(seqused_k=np.array([5, 2, 0], np.int64)), ["seqused_k: dtype int64, expected int32"]),
        (dict(batch_idx=np.array([0, 1, 3], np.int32)), ["batch_idx[2] is 3"]),
        (dict(page_table=np.zeros((3, 1), np.int32), batch_idx=LENGTHS), ["batch_idx"]),
        (dict(rotary_cos=_tables()[0]), ["rotary_cos and rotary_sin: rotary_sin is missing"]),
        (dict(zip(("rotary_cos", "rotary_sin"), _tables(20))), ["rotary_cos.shape[0] is 20", "37"]),
        (dict(zip(("rotary_cos", "rotary_sin"), _tables(half=13))), ["rotary_cos: shape [40, 13]", "at most 12"]),
        (dict(rotary_cos=_tables()[0], rotary_sin=_tables(39)[1]), ["rotary_sin: shape [39, 8]"]),
        (dict(rotary_cos=_tables()[0][:, ::2], rotary_sin=_tables()[1][:, ::2]), ["rotary_cos: strides [8, 2]"]),
        (dict(zip(("rotary_cos", "rotary_sin"), _tables(dtype=np.float64))), ["rotary_cos: dtype float64", "float32"]),
        (dict(q=np.zeros((BATCH, 1, 6, DIM), np.float32)), ["q: given without rotary_cos"]),
        (_with_q((BATCH, 1, 5, DIM)), ["q: 5 heads", "multiple of k_cache's 2"]),
        (_with_q((2, 1, 6, DIM)), ["q: batch 2, but seqused_k has 3"]),
        (_with_q((6, DIM)), ["q: shape [6, 24]", "4 dimensions"]),
        (_with_q((BATCH, 1, 6, DIM), np.float16), ["rotary_cos: dtype float32, expected float16"]),
        (_with_q((BATCH, 5, 6, DIM)), ["rotary_cos.shape[0] is 37", "38"]),
        (dict(cu_seqlens_new=LENGTHS, max_seqlen_new=4), ["cu_seqlens_new: shape [3]", "[4]"]),
    ],
    ids=lambda x: None if isinstance(x, dict) else x[0][:30],
)
def test_what_is_wrong_is_named_and_nothing_written(rng, change, words):
    caches, (k, v) = _cache(), _rows(rng)
    arguments = dict(k_cache=caches[0], v_cache=caches[1], k=k, v=v, seqused_k=LENGTHS) | change
    with pytest.raises((ValueError, TypeError)) as caught:
        tessera.append(**arguments)
    assert all(word in str(caught.value) for word in words), caught.value
    assert all(np.all(cache == 99) for cache in caches)


@pytest.mark.parametrize("name", ["k_cache", "v_cache", "k", "v", "seqused_k"])
@pytest.mark.parametrize("value", [None, 3])
def test_an_argument_that_is_no_array_is_named(rng, name, value):
    arguments = dict(zip(("k_cache", "v_cache", "k", "v"), (*_cache(), *_rows(rng))), seqused_k=LENGTHS)
    arguments[name] = value
    with pytest.raises(TypeError, match=f"^{name}: expected an array"):
        tessera.append(**arguments)


def _expanded(x):
    return np.lib.stride_tricks.as_strided(x, strides=(0, *x.strides[1:]))


@pytest.mark.parametrize(
    "name, change, words",
    [
        ("k_cache", lambda x: x[0], "k_cache: shape [40, 2, 24], expected 4 dimensions"),
        ("k_cache", lambda x: np.zeros(x.shape[:3] + (48,), x.dtype)[..., ::2], "k_cache: stride 2 of its last"),
        ("v_cache", lambda x: np.zeros(x.shape[:3] + (48,), x.dtype)[..., ::2], "v_cache: stride 2 of its last"),
        ("k_cache", _expanded, "k_cache.stride[0] is 0"),
        ("v_cache", lambda x: x[:, :20], "v_cache: seqlen 20, but k_cache has 40"),
        ("k_cache", lambda x: x.astype(np.uint8), "k_cache: dtype uint8, expected float64"),
        ("v_cache", lambda x: x.astype(np.float16), "v_cache.dtype is 3 (f16)"),
    ],
    ids=lambda x: x[:40] if isinstance(x, str) else "",
)
def test_a_wrong_cache_is_named(rng, name, change, words):
    arguments = dict(zip(("k_cache", "v_cache", "k", "v"), (*_cache(), *_rows(rng))), seqused_k=LENGTHS)
    arguments[name] = change(arguments[name])
    for extra in (dict(), _with_q((BATCH, 1, 6, DIM))):
        with pytest.raises(ValueError) as caught:
            tessera.append(**arguments, **extra)
        assert words in str(caught.value), caught.value


@pytest.mark.parametrize(
    "cu, words",
    [
        (np.array([0, 7, 1, 7, 9, 7, 12, 7], np.int32)[::2], "stride 2"),
        (np.array([0, 1, 9, 12], np.float32), "dtype float32, expected int32"),
        (np.array([0, 1, 9, 12], np.uint8), "dtype uint8, expected int32"),
        (np.broadcast_to(np.zeros(1, np.int32), (4,)), "stride 0"),
    ],
)
def test_starts_of_new_rows_are_read_as_int32_beside_queries_too(rng, cu, words):
    caches, rows = _cache(), [rng.standard_normal((12, HEADS, DIM), np.float32) for _ in range(2)]
    cos, sin = _tables()
    q = np.zeros((BATCH, 1, 6, DIM), np.float32)
    for extra in (dict(), dict(q=q, rotary_cos=cos, rotary_sin=sin)):
        with pytest.raises(ValueError, match="cu_seqlens_new") as caught:
            tessera.append(*caches, *rows, LENGTHS, cu_seqlens_new=cu, max_seqlen_new=8, **extra)
        assert words in str(caught.value), caught.value
        assert all(np.all(cache == 99) for cache in caches)


def test_read_only_caches(rng):
    caches, new = _cache(), _rows(rng)
    tessera.append(*caches, *new, LENGTHS)
    caches[1].flags.writeable = False
    with pytest.raises(ValueError, match="v_cache: read-only"):
        tessera.append(*caches, *new, LENGTHS)
