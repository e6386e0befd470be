"""int8 keys and values with scales, through attention() and through plans of every layout, against float64."""

import numpy as np
import pytest
from judge import check

import tessera

ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed: NumPy has no bfloat16 without it")
BATCH, SEQLEN, HEADS, DIM = 2, 300, 2, 40  # 300 keys: two whole blocks of 128 and a part
BLOCKS = -(-SEQLEN // 128)


def _operands(rng, dtype=np.float32, seqlen_q=2):
    q = rng.standard_normal((BATCH, seqlen_q, 6, DIM)).astype(dtype)
    k, v = (rng.integers(-127, 128, (BATCH, SEQLEN, HEADS, DIM), np.int8) for _ in "kv")
    return q, k, v


def _factors(rng, shape):
    return (rng.uniform(0.5, 1.5, shape) / 64).astype(np.float32)


def _values(x, scale):
    """What stored numbers stand for, [batch, seqlen, heads, dim] float64."""
    scale = np.asarray(scale, np.float64)
    scale = scale.reshape((1,) * (3 - scale.ndim) + scale.shape)
    rows = {1: x.shape[1], x.shape[1]: 1}.get(scale.shape[1], 128)
    return x * np.repeat(scale, rows, axis=1)[:, : x.shape[1], :, None]


SHAPES = [
    (),
    (HEADS,),
    (1, HEADS),
    (BATCH, 1, HEADS),
    (BATCH, 1, 1),
    (SEQLEN, 1),
    (SEQLEN, HEADS),
    (BATCH, SEQLEN, HEADS),
    (1, BLOCKS, HEADS),
    (BATCH, BLOCKS, 1),
    (BATCH, BLOCKS, HEADS),
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16], ids=lambda d: np.dtype(d).name)
def test_scales_of_every_extent(rng, dtype, shape):
    q, k, v = _operands(rng, dtype)
    k_scale, v_scale = _factors(rng, shape), _factors(rng, shape[::-1] if shape == (1, HEADS) else shape)
    if v_scale.shape == (HEADS, 1):
        v_scale = v_scale.reshape(1, HEADS)
    o, lse = tessera.attention(q, k, v, k_scale=k_scale, v_scale=v_scale, causal=True, return_lse=True)
    assert o.dtype == q.dtype
    check(o, q, _values(k, k_scale), _values(v, v_scale), lse, causal=True)


def test_each_scale_alone_and_neither(rng):
    q, k, v = _operands(rng)
    factors = _factors(rng, (BATCH, SEQLEN, HEADS))
    one = np.ones((), np.float32)
    check(tessera.attention(q, k, v, k_scale=factors), q, _values(k, factors), _values(v, one))
    for options in (dict(v_scale=factors), {}):
        v_values = _values(v, options.get("v_scale", one))
        check(tessera.attention(q, k, v, scale=1e-4, **options), q, _values(k, one), v_values, scale=1e-4)


def test_scales_with_strides_of_their_own(rng):
    q, k, v = _operands(rng)
    wide = _factors(rng, (HEADS, BATCH, SEQLEN, 3))[..., 1].transpose(1, 2, 0)
    assert not wide.flags.c_contiguous
    o = tessera.attention(q, k, v, k_scale=wide, v_scale=wide)
    check(o, q, _values(k, wide), _values(v, wide))
    copied = np.ascontiguousarray(wide)
    assert np.array_equal(o, tessera.attention(q, k, v, k_scale=copied, v_scale=copied))


def test_a_prefill_over_int8_keys(rng):
    q, k, v = _operands(rng, seqlen_q=150)
    factors = _factors(rng, (HEADS,))
    check(
        tessera.attention(q, k, v, k_scale=factors, v_scale=factors, window=(90, 0)),
        q,
        _values(k, factors),
        _values(v, factors),
        window=(90, 0),
    )


def test_plan_of_int8_arrays(rng):
    q, k, v = _operands(rng)
    scales = dict(k_scale=_factors(rng, (BATCH, BLOCKS, HEADS)), v_scale=_factors(rng, (HEADS,)))
    plan = tessera.plan(q, k, v, **scales)
    assert plan.kernel.endswith(".decode")
    o = np.full(q.shape, np.nan, np.float32)
    plan.run(q=q, k=k, v=v, o=o, **scales)
    check(o, q, _values(k, scales["k_scale"]), _values(v, scales["v_scale"]))
    with pytest.raises(ValueError, match=r"k_scale: shape \[2, 300, 2\], expected \[2 or 1, 3 or 1, 2 or 1\]"):
        plan.run(q=q, k=k, v=v, o=o, k_scale=_factors(rng, (BATCH, SEQLEN, HEADS)), v_scale=scales["v_scale"])
    with pytest.raises(ValueError, match="k_scale: strides"):
        plan.run(q=q, k=k, v=v, o=o, k_scale=_factors(rng, (1, BLOCKS, HEADS)), v_scale=scales["v_scale"])


@pytest.mark.parametrize("rows", [0, 1, 16], ids=["all rows", "each row", "each page"])
def test_pages(rng, rows):
    lengths, size = [130, 37], 16
    q, k, v = _operands(rng, seqlen_q=1)
    order = rng.permutation(14).astype(np.int32)
    table = np.full((BATCH, 10), -1, np.int32)
    blocks = 1 if rows == 0 else size // rows
    pages = {name: np.full((14, size, HEADS, DIM), 127, np.int8) for name in "kv"}
    factors = {name: np.full((14, blocks, HEADS), np.nan, np.float32) for name in "kv"}  # NaN where nothing is used
    values = {name: np.zeros((BATCH, SEQLEN, HEADS, DIM)) for name in "kv"}
    used = 0
    for b, length in enumerate(lengths):
        for slot in range(-(-length // size)):
            page = table[b, slot] = order[used]
            used += 1
            n = min(size, length - slot * size)
            for name, x in (("k", k), ("v", v)):
                pages[name][page, :n] = x[b, slot * size : slot * size + n]
                wanted = -(-n // rows) if rows else 1
                factors[name][page, :wanted] = _factors(rng, (wanted, HEADS))
                each = np.repeat(factors[name][page], rows or size, axis=0)[:n, :, None].astype(np.float64)
                values[name][b, slot * size : slot * size + n] = pages[name][page, :n] * each
    problem = tessera.Problem(
        f"fwd f32 b2 hq6 hkv2 sq1 sk160 d{DIM} kv=int8 paged={size}", num_pages=14, max_pages=10, k_scale_rows=rows
    )
    problem.v_scale_rows = rows
    problem.flags |= tessera._c.FLAG_SEQUSED_K
    for name in ("k_scale", "v_scale"):
        getattr(problem, name).stride[:] = (blocks * HEADS, HEADS, 1, 0)
    o = np.full(q.shape, np.nan, np.float32)
    tessera.Plan(problem).run(
        q=q,
        k=pages["k"],
        v=pages["v"],
        o=o,
        page_table=table,
        seqused_k=np.array(lengths, np.int32),
        k_scale=factors["k"],
        v_scale=factors["v"],
    )
    for b, length in enumerate(lengths):
        check(o[b : b + 1], q[b : b + 1], values["k"][b : b + 1, :length], values["v"][b : b + 1, :length])


def test_torch_tensors(rng):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    q, k, v = _operands(rng)
    factors = _factors(rng, (BATCH, 1, HEADS))
    o = tessera.attention(*map(torch.from_numpy, (q, k, v)), k_scale=torch.from_numpy(factors))
    assert isinstance(o, torch.Tensor)
    assert np.array_equal(o.numpy(), tessera.attention(q, k, v, k_scale=factors))


@pytest.mark.parametrize(
    "change, words",
    [
        (dict(k_scale=np.zeros((4, HEADS), np.float32)), ["k_scale", "4 row blocks", "300", "3"]),
        (dict(v_scale=np.zeros((BATCH, 3), np.float32)), ["v_scale", "2 row blocks"]),
        (dict(v_scale=np.zeros((3, 1, HEADS), np.float32)), ["v_scale", "[3, 1, 2]", "2 or 1"]),
        (dict(k_scale=np.zeros(HEADS, np.float64)), ["k_scale", "float64", "float32"]),
        (dict(k_scale=np.zeros((1, 1, 1, HEADS), np.float32)), ["k_scale", "[1, 1, 1, 2]"]),
        (dict(k_scale=np.zeros((BATCH, SEQLEN, HEADS), np.float32)[:, ::-1]), ["k_scale", "stride"]),
    ],
    ids=["row blocks", "blocks of no size", "batch", "dtype", "rank", "reversed"],
)
def test_wrong_scales(rng, change, words):
    q, k, v = _operands(rng)
    with pytest.raises(ValueError) as caught:
        tessera.attention(q, k, v, **change)
    assert all(word in str(caught.value) for word in words), caught.value
    one = np.full((), 1 / 64, np.float32)
    check(tessera.attention(q, k, v, k_scale=one, v_scale=one), q, _values(k, one), _values(v, one))


def test_other_mixes_are_refused(rng):
    q, k, v = _operands(rng)
    factors = _factors(rng, (HEADS,))
    with pytest.raises(ValueError, match="k_scale is described but its operand is f32"):
        tessera.attention(q, k.astype(np.float32), v.astype(np.float32), k_scale=factors)
    with pytest.raises(TypeError, match="k_scale"):
        tessera.attention(q, k, v, k_scale=0.5)
    with pytest.raises(ValueError, match="v.dtype"):
        tessera.attention(q, k, v.astype(np.float32), k_scale=factors)
    with pytest.raises(ValueError, match=r"k.dtype is 6 \(int8\) and q.dtype is 1 \(f64\)"):
        tessera.attention(q.astype(np.float64), k, v, k_scale=factors, v_scale=factors)
