"""The judge of the Python tests: attention by NumPy in float64, and the rule that says how far off is still right."""

import numpy as np

TOLERANCE_FLOOR = {"float64": 1e-12, "float32": 2e-6, "float16": 1e-5, "bfloat16": 1e-5}


def evaluate(
    q,
    k,
    v,
    *,
    causal=False,
    window=(-1, -1),
    scale=None,
    softcap=0.0,
    alibi_slopes=None,
    sinks=None,
    bias=None,
    work=np.float64,
    rounded=None,
):
    """(o, lse) with scores and probabilities in `work`; `rounded`: round probabilities and o to that dtype."""
    q, k, v = (np.asarray(x).astype(work) for x in (q, k, v))
    batch, seqlen_q, heads_q, dim = q.shape
    seqlen_k, heads_kv = k.shape[1:3]
    k, v = (np.repeat(x, heads_q // heads_kv, axis=2) for x in (k, v))
    x = np.einsum("bihd,bjhd->bhij", q, k) * work(1 / np.sqrt(dim) if scale is None else scale)
    if softcap > 0:
        x = work(softcap) * np.tanh(x / work(softcap))
    diagonal = np.arange(seqlen_q)[:, None] + (seqlen_k - seqlen_q)
    column = np.arange(seqlen_k)[None, :]
    left, right = window[0], 0 if causal else window[1]
    keep = np.ones((seqlen_q, seqlen_k), bool)
    if left >= 0:
        keep &= column >= diagonal - left
    if right >= 0:
        keep &= column <= diagonal + right
    if alibi_slopes is not None:
        slopes = np.broadcast_to(np.asarray(alibi_slopes).astype(work), (batch, heads_q))
        x = x - slopes[:, :, None, None] * np.abs(diagonal - column).astype(work)
    keep = np.broadcast_to(keep, x.shape)
    if bias is not None:
        bias = np.asarray(bias)
        if bias.dtype in (np.bool_, np.uint8):
            keep = keep & np.broadcast_to(bias != 0, x.shape)
        else:
            x = x + bias.astype(work)
    x = np.where(keep, x, -np.inf)
    top = np.max(x, axis=-1, keepdims=True, initial=-np.inf)
    if sinks is not None:
        sink = np.asarray(sinks).astype(work)[None, :, None, None]
        top = np.maximum(top, sink)
    safe = np.where(np.isinf(top), 0, top)
    p = np.exp(x - safe)
    total = p.sum(axis=-1, keepdims=True)
    if sinks is not None:
        total = total + np.exp(sink - safe)
    with np.errstate(divide="ignore"):
        lse = (np.log(total) + safe)[..., 0]
    p = p / np.where(total == 0, 1, total)
    if rounded is not None:
        p = p.astype(rounded).astype(work)
    o = np.einsum("bhij,bjhd->bihd", p, v)
    if rounded is not None:
        o = o.astype(rounded).astype(work)
    return o, lse


def check(o, q, k, v, lse=None, **options):
    """Asserts that o (and lse) are right: max|o - ref| <= 2 max|naive - ref| + a max(1, max|ref|)."""
    o = np.asarray(o)
    name = o.dtype.name
    expected, expected_lse = evaluate(q, k, v, **options)
    assert o.shape == expected.shape
    if o.size:
        work = np.float64 if name == "float64" else np.float32
        naive, _ = evaluate(q, k, v, work=work, rounded=o.dtype, **options)
        bound = 2 * np.abs(naive - expected).max() + TOLERANCE_FLOOR[name] * max(1.0, np.abs(expected).max())
        error = np.abs(o.astype(np.float64) - expected).max()
        assert error <= bound, f"o is off by {error:.3g}, allowed {bound:.3g}"
    if lse is not None:
        lse = np.asarray(lse)
        assert lse.shape == expected_lse.shape
        assert lse.dtype == (np.float64 if name == "float64" else np.float32)
        finite = np.isfinite(expected_lse)
        assert np.array_equal(lse[~finite], expected_lse[~finite].astype(lse.dtype))
        error = np.abs(lse[finite] - expected_lse[finite])
        assert np.all(error <= 1e-3 + 2.0**-20 * np.abs(expected_lse[finite]))


def operands(rng, dtype, batch=2, seqlen_q=37, seqlen_k=53, heads_q=4, heads_kv=2, dim=32, dim_v=None):
    """Random q, k, v, contiguous, [batch, seqlen, heads, dim]."""
    shapes = (
        (batch, seqlen_q, heads_q, dim),
        (batch, seqlen_k, heads_kv, dim),
        (batch, seqlen_k, heads_kv, dim_v or dim),
    )
    return tuple(rng.standard_normal(shape).astype(dtype) for shape in shapes)
