"""quantize(), and attention() on its float8 results, against float64."""

import numpy as np
import pytest
from judge import evaluate

import tessera

ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed: NumPy has no float8 without it")
BATCH, SEQLEN, HEADS, DIM = 2, 150, 2, 40
KEY_SLOT = [0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15]


def _rows(scale, shape):
    """Scales [batch, row block, heads] for each row, [batch, seqlen, heads, 1]."""
    scale = np.asarray(scale, np.float64)
    rows = {1: shape[1], shape[1]: 1}.get(scale.shape[1], 128)
    return np.repeat(scale, rows, axis=1)[:, : shape[1], :, None]


def _values(made, shape):
    """What a result in order 0 stands for, in float64."""
    scale = 1 if made.scale is None else _rows(made.scale, shape)
    mean = 0 if made.mean is None else np.asarray(made.mean, np.float64)[:, None]
    return np.asarray(made.data).astype(np.float64) * scale + mean


def _ordered(made, seqlen):
    """Data in order 1 as order 0 has it."""
    slots = [row - row % 16 + KEY_SLOT[row % 16] for row in range(seqlen)]
    return np.asarray(made.data)[..., slots].transpose(0, 3, 1, 2)


@pytest.mark.parametrize("scales", [None, "tensor", "head", "block", "row"])
@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "int8"])
@pytest.mark.parametrize("given", [np.float32, np.float16, ml_dtypes.bfloat16], ids=lambda d: np.dtype(d).name)
def test_values_are_near(rng, given, dtype, scales):
    x = rng.standard_normal((BATCH, SEQLEN, HEADS, DIM)).astype(given)
    made = tessera.quantize(x, dtype=dtype, scales=scales)
    assert made.data.dtype.name == dtype and made.data.shape == x.shape and made.mean is None
    expected = {None: None, "tensor": (1, 1, 1), "head": (BATCH, 1, HEADS), "block": (BATCH, 2, HEADS)}
    assert (made.scale is None) == (scales is None)
    if scales is not None:
        assert made.scale.shape == expected.get(scales, (BATCH, SEQLEN, HEADS))
    exact = x.astype(np.float64)
    scale = np.ones((1, 1, 1)) if made.scale is None else made.scale
    unit = np.broadcast_to(_rows(scale, x.shape), x.shape)
    step = unit if dtype == "int8" else np.maximum(np.abs(exact) / 16, unit * 2.0**-10)
    limit = (127 if dtype == "int8" else 448) * unit
    clipped = np.clip(exact, -limit, limit)
    assert np.all(np.abs(_values(made, x.shape) - clipped) <= step * (0.5 if dtype == "int8" else 1) * (1 + 1e-5))


def test_order_mean_and_rotation_say_what_they_are(rng):
    x = (rng.standard_normal((BATCH, SEQLEN, HEADS, DIM)) + 3).astype(ml_dtypes.bfloat16)
    plain, ordered = (tessera.quantize(x, subtract_mean=True, order=order) for order in (0, 1))
    assert ordered.data.shape == (BATCH, HEADS, DIM, 160)
    assert np.array_equal(_ordered(ordered, SEQLEN).view(np.uint8), plain.data.view(np.uint8))
    assert np.array_equal(ordered.scale, plain.scale) and np.array_equal(ordered.mean, plain.mean)
    assert np.allclose(plain.mean, x.astype(np.float64).mean(axis=1), rtol=1e-6, atol=1e-7)
    assert np.abs(_values(plain, x.shape) - x.astype(np.float64)).max() < 0.2
    q, k = (rng.standard_normal((1, 30, 1, 64)).astype(np.float32) for _ in "qk")
    products = [
        np.einsum(
            "ic,jc->ij",
            _values(tessera.quantize(q, rotate=a), q.shape)[0, :, 0],
            _values(tessera.quantize(k, rotate=b), k.shape)[0, :, 0],
        )
        for a, b in ((5, 5), (5, 6))
    ]
    exact = q[0, :, 0].astype(np.float64) @ k[0, :, 0].astype(np.float64).T
    assert np.abs(products[0] - exact).max() < 2 < np.abs(products[1] - exact).max()


def test_packed_rows(rng):
    x = rng.standard_normal((100, HEADS, DIM)).astype(np.float32)
    cu = np.array([0, 33, 33, 97], np.int32)
    made = tessera.quantize(x, cu_seqlens=cu, max_seqlen=64)
    assert made.data.shape == x.shape and made.scale.shape == (3, 1, HEADS)
    for b in range(3):
        rows = slice(cu[b], cu[b + 1])
        if cu[b] < cu[b + 1]:
            alone = tessera.quantize(x[None, rows])
            assert np.array_equal(alone.data[0].view(np.uint8), made.data[rows].view(np.uint8))
            assert np.array_equal(alone.scale[0], made.scale[b])
    assert tessera.quantize(x, cu_seqlens=cu, max_seqlen=64, order=1).data.shape == (HEADS, DIM, 144)


@pytest.mark.parametrize("order", [0, 1])
@pytest.mark.parametrize("scales", ["tensor", "head", "block"])
def test_attention_on_what_was_quantised(rng, scales, order):
    q = rng.standard_normal((BATCH, 70, 4, DIM)).astype(ml_dtypes.bfloat16)
    k, v = (rng.standard_normal((BATCH, SEQLEN, HEADS, DIM)).astype(ml_dtypes.bfloat16) for _ in "kv")
    sinks = rng.standard_normal(4).astype(np.float32)
    qq, kk = (tessera.quantize(x, scales=scales, rotate=9) for x in (q, k))
    vv = tessera.quantize(v, scales=scales, subtract_mean=True, order=order)
    options = dict(q_scale=qq.scale, k_scale=kk.scale, v_scale=vv.scale, v_mean=vv.mean, v_order=order, sinks=sinks)
    o, lse = tessera.attention(qq.data, kk.data, vv.data, causal=True, return_lse=True, **options)
    assert o.dtype == ml_dtypes.bfloat16
    plain = vv if order == 0 else tessera.quantize(v, scales=scales, subtract_mean=True)
    values = [_values(x, y.shape) for x, y in ((qq, q), (kk, k), (plain, v))]
    expected, expected_lse = evaluate(*values, causal=True, sinks=sinks)
    assert np.abs(o.astype(np.float64) - expected).max() < 1e-2
    assert np.abs(lse - expected_lse).max() < 1e-3
    near, _ = evaluate(q, k, v, causal=True, sinks=sinks)
    assert np.sqrt(np.mean((o.astype(np.float64) - near) ** 2)) < 0.05
    for name in ("float32", "float16"):
        same = tessera.attention(qq.data, kk.data, vv.data, causal=True, out_dtype=name, **options)
        assert same.dtype.name == name and np.abs(same.astype(np.float64) - expected).max() < 1e-3


def test_a_plan_of_float8_arrays_runs(rng):
    q, k, v = (rng.standard_normal((1, 33, 2, 32)).astype(np.float32) for _ in "qkv")
    qq, kk, vv = tessera.quantize(q), tessera.quantize(k), tessera.quantize(v, subtract_mean=True, order=1)
    scales = dict(q_scale=qq.scale, k_scale=kk.scale, v_scale=vv.scale, v_mean=vv.mean)
    plan = tessera.plan(qq.data, kk.data, vv.data, v_order=1, out_dtype="float32", **scales)
    o = np.full(q.shape, np.nan, np.float32)
    plan.run(q=qq.data, k=kk.data, v=vv.data, o=o, **scales)
    assert np.array_equal(o, tessera.attention(qq.data, kk.data, vv.data, v_order=1, out_dtype="float32", **scales))


def test_errors_name_the_argument(rng):
    x = rng.standard_normal((1, 20, 2, 16)).astype(np.float32)
    for options, says in (
        (dict(dtype="float8_e5m2"), "dtype: 'float8_e5m2'"),
        (dict(scales="page"), "scales: 'page'"),
        (dict(order=2), "order is 2"),
        (dict(max_seqlen=3), "cu_seqlens and max_seqlen"),
        (dict(cu_seqlens=np.zeros(2, np.int32), max_seqlen=4), "x: shape"),
    ):
        with pytest.raises(ValueError, match=says):
            tessera.quantize(x, **options)
    with pytest.raises(ValueError, match="x.dtype is 1"):
        tessera.quantize(x.astype(np.float64))
    with pytest.raises(TypeError, match="rotate"):
        tessera.quantize(x, rotate=1.5)
    made = tessera.quantize(x)
    with pytest.raises(ValueError, match="v: shape"):
        tessera.attention(made.data, made.data, made.data, v_order=1)
    with pytest.raises(ValueError, match="v_mean: shape"):
        tessera.attention(made.data, made.data, made.data, v_mean=np.zeros((3, 16), np.float32))
    with pytest.raises(ValueError, match="out_dtype"):
        tessera.attention(x, x, x, out_dtype="float64")


def test_torch_tensors(rng):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    x = torch.from_numpy(rng.standard_normal((BATCH, SEQLEN, HEADS, DIM)).astype(np.float32)).to(torch.bfloat16)
    made = tessera.quantize(x, subtract_mean=True, order=1)
    assert made.data.dtype is torch.float8_e4m3fn and made.data.shape == (BATCH, HEADS, DIM, 160)
    assert made.scale.dtype is torch.float32 and made.mean.shape == (BATCH, HEADS, DIM)
    same = tessera.quantize(x.float().numpy().astype(ml_dtypes.bfloat16), subtract_mean=True, order=1)
    assert np.array_equal(made.data.view(torch.uint8).numpy(), same.data.view(np.uint8))
    qq, kk = tessera.quantize(x, rotate=2), tessera.quantize(x, rotate=2)
    scales = dict(q_scale=qq.scale, k_scale=kk.scale, v_scale=made.scale, v_mean=made.mean)
    o, lse = tessera.attention(qq.data, kk.data, made.data, v_order=1, return_lse=True, causal=True, **scales)
    assert o.dtype is torch.bfloat16 and lse.dtype is torch.float32
    near = tessera.attention(x.float(), x.float(), x.float(), causal=True)
    assert (o.float() - near).square().mean().sqrt() < 0.05
    plain = tessera.attention(qq.data, kk.data, tessera.quantize(x).data)  # without scales: cast alone
    assert plain.dtype is torch.bfloat16 and plain.isfinite().all()
