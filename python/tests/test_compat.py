"""The FlashAttention drop-ins: signatures, results, their lse, the key/value cache, and refusals with reasons."""

import inspect

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed: NumPy has no bfloat16 without it")

from torch_help import CACHE_BATCH, cache_operands, judge, need, operands, textbook, working  # noqa: E402

import tessera  # noqa: E402
import tessera.compat.flash_attn as fa2  # noqa: E402
import tessera.compat.flash_attn_interface as fa3  # noqa: E402
from tessera.compat import _common as common  # noqa: E402

# As published: the order and the defaults are what a drop-in has to keep.
TAIL2 = (
    "dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0, alibi_slopes=None, "
    "deterministic=False, return_attn_probs=False"
)
LENGTHS = "cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k"
DESCALES = "q_descale=None, k_descale=None, v_descale=None"
SIGNATURES = {
    (fa2, "flash_attn_func"): f"q, k, v, {TAIL2}",
    (fa2, "flash_attn_qkvpacked_func"): f"qkv, {TAIL2}",
    (fa2, "flash_attn_kvpacked_func"): f"q, kv, {TAIL2}",
    (fa2, "flash_attn_varlen_func"): f"q, k, v, {LENGTHS}, {TAIL2}, block_table=None",
    (fa2, "flash_attn_varlen_qkvpacked_func"): f"qkv, cu_seqlens, max_seqlen, {TAIL2}",
    (fa2, "flash_attn_varlen_kvpacked_func"): f"q, kv, {LENGTHS}, {TAIL2}",
    (fa2, "flash_attn_with_kvcache"): "q, k_cache, v_cache, k=None, v=None, rotary_cos=None, rotary_sin=None, "
    "cache_seqlens=None, cache_batch_idx=None, cache_leftpad=None, block_table=None, softmax_scale=None, causal=False, "
    "window_size=(-1, -1), softcap=0.0, rotary_interleaved=True, alibi_slopes=None, num_splits=0, "
    "return_softmax_lse=False",
    (fa3, "flash_attn_func"): f"q, k, v, softmax_scale=None, causal=False, qv=None, {DESCALES}, window_size=(-1, -1), "
    "attention_chunk=0, softcap=0.0, num_splits=1, pack_gqa=None, deterministic=False, sm_margin=0, "
    "return_attn_probs=False",
    (fa3, "flash_attn_qkvpacked_func"): f"qkv, softmax_scale=None, causal=False, {DESCALES}, window_size=(-1, -1), "
    "attention_chunk=0, softcap=0.0, deterministic=False, num_heads_q=None, sm_margin=0, return_attn_probs=False",
    (fa3, "flash_attn_varlen_func"): f"q, k, v, {LENGTHS}, seqused_q=None, seqused_k=None, softmax_scale=None, "
    f"causal=False, qv=None, {DESCALES}, window_size=(-1, -1), attention_chunk=0, softcap=0.0, num_splits=1, "
    "pack_gqa=None, deterministic=False, sm_margin=0, return_attn_probs=False",
    (fa3, "flash_attn_with_kvcache"): "q, k_cache, v_cache, k=None, v=None, qv=None, rotary_cos=None, rotary_sin=None, "
    "cache_seqlens=None, cache_batch_idx=None, cache_leftpad=None, page_table=None, cu_seqlens_q=None, "
    f"cu_seqlens_k_new=None, max_seqlen_q=None, rotary_seqlens=None, {DESCALES}, softmax_scale=None, causal=False, "
    "window_size=(-1, -1), attention_chunk=0, softcap=0.0, rotary_interleaved=True, scheduler_metadata=None, "
    "num_splits=0, pack_gqa=None, sm_margin=0, return_softmax_lse=False",
    (fa3, "flash_attn_combine"): "out_partial, lse_partial, out=None, out_dtype=None",
    (fa3, "get_scheduler_metadata"): "batch_size, max_seqlen_q, max_seqlen_k, num_heads_q, num_heads_kv, headdim, "
    "cache_seqlens, qkv_dtype=torch.bfloat16, headdim_v=None, cu_seqlens_q=None, cu_seqlens_k_new=None, "
    "cache_leftpad=None, page_size=None, max_seqlen_k_new=0, causal=False, window_size=(-1, -1), attention_chunk=0, "
    "has_softcap=False, num_splits=0, pack_gqa=None, sm_margin=0",
}


@pytest.mark.parametrize("module, name", SIGNATURES, ids=lambda x: x if isinstance(x, str) else x.__name__[-20:])
def test_signatures(module, name):
    found = inspect.signature(getattr(module, name)).parameters.values()
    text = ", ".join(p.name if p.default is p.empty else f"{p.name}={p.default!r}" for p in found)
    assert text == SIGNATURES[module, name] and name in module.__all__


OPTIONS = {
    "plain": {},
    "causal": dict(causal=True),
    "window": dict(window_size=(7, 3)),
    "causal window": dict(causal=True, window_size=(5, -1)),
    "scale and softcap": dict(softmax_scale=0.3, softcap=2.0),
}


def ours(options):
    names = {"window_size": "window", "softmax_scale": "scale"}
    return {names.get(name, name): x for name, x in options.items()}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
def test_dense(device, options):
    q, k, v = operands(device)
    o, lse, probs = fa2.flash_attn_func(q, k, v, **options, return_attn_probs=True)
    judge(o, q, k, v, lse, **ours(options))
    assert probs.numel() == 0 and torch.equal(o, fa2.flash_attn_func(q, k, v, **options))
    o3, lse3 = fa3.flash_attn_func(q, k, v, **options, return_attn_probs=True)
    judge(o3, q, k, v, lse3, **ours(options))
    kv = torch.stack((k, v), 2)
    assert torch.equal(o, fa2.flash_attn_kvpacked_func(q, kv, **options))
    qkv = torch.stack((k, k, v), 2)
    judge(fa2.flash_attn_qkvpacked_func(qkv, **options), k, k, v, **ours(options))
    judge(fa3.flash_attn_qkvpacked_func(qkv, **options), k, k, v, **ours(options))
    grouped = torch.cat((q[:, :53], k[:, :37], v[:, :37]), 2)
    judge(fa3.flash_attn_qkvpacked_func(grouped, num_heads_q=4, **options), q, k[:, :37], v[:, :37], **ours(options))


def test_a_last_stride_that_is_not_1(device):
    q, k, v = operands(device)
    strided = k.transpose(1, 3).contiguous().transpose(1, 3)
    assert torch.equal(fa2.flash_attn_func(q, strided, v), fa2.flash_attn_func(q, k, v))


def test_rows_without_a_key(device):
    """5 queries, 2 keys: three rows see nothing, out 0, lse +inf as in those packages."""
    q = torch.randn(1, 5, 1, 64, device=device).to(working(device))
    k, v = torch.zeros_like(q[:, :2]), torch.ones_like(q[:, :2])
    v[:, 1] = 3
    for o, lse in (
        fa2.flash_attn_func(q, k, v, causal=True, return_attn_probs=True)[:2],
        fa3.flash_attn_func(q, k, v, causal=True, return_attn_probs=True),
    ):
        assert o[0, :, 0, 0].tolist() == [0, 0, 0, 1, 2]
        assert torch.allclose(lse[0, 0].cpu(), torch.tensor([torch.inf] * 3 + [0, 0.693147]), atol=1e-6)


@pytest.mark.parametrize("per_batch", [False, True])
@pytest.mark.parametrize(
    "options", [dict(causal=True), dict(window_size=(-1, 0)), dict(causal=True, window_size=(9, 0)), {}]
)
def test_lse_under_alibi(device, options, per_batch):
    """The causal kernel adds slope * j, so its lse is ours + slope * d(i); any other path has ours."""
    q, k, v = operands(device)
    slopes = torch.rand((2, 4) if per_batch else (4,), device=device)
    o, lse, _ = fa2.flash_attn_func(q, k, v, **options, alibi_slopes=slopes, return_attn_probs=True)
    plain, right = tessera.attention(q, k, v, **ours(options), alibi_slopes=slopes, return_lse=True)
    judge(o, q, k, v, **ours(options), alibi_slopes=slopes)
    shifted = options.get("window_size", (-1, 0))[0] < 0 and options != {}
    distance = torch.arange(37, device=device) + 16
    wide = slopes if per_batch else slopes.expand(2, 4)
    expected = right + wide[:, :, None] * distance if shifted else right
    assert torch.allclose(lse, expected, atol=1e-4)
    if shifted:  # and that is the log-sum-exp of what that kernel's scores are
        columns = (slopes if per_batch else slopes[None])[:, :, None, None] * torch.arange(53, device=device)
        _, direct = textbook(q.double(), k.double(), v.double(), causal=True, bias=columns.double())
        assert torch.allclose(lse.double(), direct, atol=1e-3)


LENGTHS_Q, LENGTHS_K = (9, 0, 5, 1), (4, 7, 5, 30)


def packed(device, seed=5):
    q, k, v = (x[0] for x in operands(device, batch=1, seqlen_q=sum(LENGTHS_Q), seqlen_k=sum(LENGTHS_K), seed=seed))
    cu = [
        torch.tensor([0, *n], dtype=torch.int32).cumsum(0, dtype=torch.int32).to(device) for n in (LENGTHS_Q, LENGTHS_K)
    ]
    return q, k, v, *cu


def judge_packed(o, lse, q, k, v, cu_q, cu_k, **options):
    for i in range(len(cu_q) - 1):
        a, b, c, d = (int(x) for x in (*cu_q[i : i + 2], *cu_k[i : i + 2]))
        one = None if lse is None else torch.where(lse == torch.inf, -torch.inf, lse)[None, :, a:b]
        judge(o[None, a:b], q[None, a:b], k[None, c:d], v[None, c:d], one, **options)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
def test_varlen(device, options):
    q, k, v, cu_q, cu_k = packed(device)
    lengths = (cu_q, cu_k, max(LENGTHS_Q), max(LENGTHS_K))
    o, lse, _ = fa2.flash_attn_varlen_func(q, k, v, *lengths, **options, return_attn_probs=True)
    assert lse.shape == (4, sum(LENGTHS_Q))
    judge_packed(o, lse, q, k, v, cu_q, cu_k, **ours(options))
    assert torch.equal(o, fa3.flash_attn_varlen_func(q, k, v, *lengths, **options, num_splits=0))
    assert torch.equal(o, fa2.flash_attn_varlen_kvpacked_func(q, torch.stack((k, v), 1), *lengths, **options))
    one = fa2.flash_attn_varlen_qkvpacked_func(torch.stack((k, k, v), 1), cu_k, max(LENGTHS_K), **options)
    judge_packed(one, None, k, k, v, cu_k, cu_k, **ours(options))
    used = torch.tensor([2, 7, 0, 30], dtype=torch.int32, device=device)
    short = fa3.flash_attn_varlen_func(q, k, v, *lengths, seqused_k=used, **options)
    a = int(cu_k[0])
    judge(short[None, :9], q[None, :9], k[None, a : a + 2], v[None, a : a + 2], **ours(options))
    assert torch.all(short[9:14] == 0)


def test_varlen_alibi_lse(device):
    q, k, v, cu_q, cu_k = packed(device)
    for slopes in (torch.rand(4, device=device), torch.rand(4, 4, device=device)):
        lengths = (cu_q, cu_k, max(LENGTHS_Q), max(LENGTHS_K))
        extra = dict(causal=True, alibi_slopes=slopes, return_attn_probs=True)
        o, lse, _ = fa2.flash_attn_varlen_func(q, k, v, *lengths, **extra)
        for i in range(4):
            a, b, c, d = (int(x) for x in (*cu_q[i : i + 2], *cu_k[i : i + 2]))
            extra["alibi_slopes"] = slopes if slopes.dim() == 1 else slopes[i]
            _, one, _ = fa2.flash_attn_func(q[None, a:b], k[None, c:d], v[None, c:d], **extra)
            assert torch.allclose(lse[None, :, a:b], one, atol=1e-4)


def test_varlen_pages(device):
    q, _, _, cu_q, _ = packed(device)
    pages, values = (torch.randn(8, 16, 2, 32, device=device).to(q.dtype) for _ in "kv")
    table = torch.tensor([[3, 0], [1, 0], [7, 2], [5, 4]], dtype=torch.int32, device=device)
    cu_k = torch.tensor([0, 4, 11, 28, 58], dtype=torch.int32, device=device)
    o = fa2.flash_attn_varlen_func(q, pages, values, cu_q, cu_k, 9, 30, causal=True, block_table=table)
    flat = [torch.cat([x[table[i]].flatten(0, 1)[:n] for i, n in enumerate((4, 7, 17, 30))]) for x in (pages, values)]
    judge_packed(o, None, q, *flat, cu_q, cu_k, causal=True)


class TestCache:
    B = CACHE_BATCH

    def make(self, device, batch_cache=None, seed=7):
        return cache_operands(device, batch_cache, seed)

    @pytest.mark.parametrize("module", [fa2, fa3], ids=["fa2", "fa3"])
    @pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
    def test_append_and_attend(self, device, module, options):
        """New rows go behind each sequence's own length; what lies behind them is never read (it is NaN)."""
        q, k, v, cache, old, lengths = self.make(device, batch_cache=5)
        rows = torch.tensor([4, 0, 2], dtype=torch.int32, device=device)
        for x, y in zip(cache, old):
            for i, row in enumerate(rows.tolist()):
                x[row, : lengths[i]] = y[i, : lengths[i]]
        untouched = [x[[1, 3]].clone() for x in cache]
        o, lse, *_ = module.flash_attn_with_kvcache(
            q, *cache, k, v, cache_seqlens=lengths, cache_batch_idx=rows, **options, return_softmax_lse=True
        )
        for i, row in enumerate(rows.tolist()):
            n = int(lengths[i])
            keys, values = (torch.cat((y[i, :n], x[i]))[None] for y, x in zip(old, (k, v)))
            assert torch.equal(cache[0][row, : n + 3], keys[0]) and torch.equal(cache[1][row, : n + 3], values[0])
            assert torch.all(torch.isnan(cache[0][row, n + 3 :]))
            judge(o[i : i + 1], q[i : i + 1], keys, values, lse[i : i + 1], **ours(options))
        for x, y in zip(cache, untouched):
            assert torch.equal(x[[1, 3]].nan_to_num(9), y.nan_to_num(9))

    def test_pages(self, device):
        q, k, v, _, old, lengths = self.make(device)
        pages = [torch.full((12, 10, 2, 32), torch.nan, device=device, dtype=q.dtype) for _ in "kv"]
        table = torch.tensor([[9, 1, 3, 0], [2, 4, 6, 8], [10, 5, 7, 11]], dtype=torch.int32, device=device)
        for x, y in zip(pages, old):
            for i in range(self.B):
                for j in range(int(lengths[i])):
                    x[table[i, j // 10], j % 10] = y[i, j]
        names = {"fa2": "block_table", "fa3": "page_table"}
        for module, name in ((fa2, names["fa2"]), (fa3, names["fa3"])):
            o = module.flash_attn_with_kvcache(q, *pages, k, v, cache_seqlens=lengths, causal=True, **{name: table})
            for i in range(self.B):
                n = int(lengths[i])
                keys, values = (torch.cat((y[i, :n], x[i]))[None] for y, x in zip(old, (k, v)))
                judge(o[i : i + 1], q[i : i + 1], keys, values, causal=True)

    @pytest.mark.parametrize("interleaved", [False, True])
    @pytest.mark.parametrize("causal", [False, True])
    def test_rotary(self, device, causal, interleaved):
        q, k, v, cache, old, lengths = self.make(device)
        for x, y in zip(cache, old):
            x.copy_(y)
        angle = torch.outer(torch.arange(64.0), 0.3 ** torch.arange(8.0))
        cos, sin = (f(angle).to(device, q.dtype) for f in (torch.cos, torch.sin))
        o = fa2.flash_attn_with_kvcache(
            q, *cache, k, v, cos, sin, cache_seqlens=lengths, causal=causal, rotary_interleaved=interleaved
        )

        def turn(x, position):  # one row [heads, 32] by complex numbers
            head, rest = x[..., :16].double(), x[..., 16:]
            pairs = head.unflatten(-1, (8, 2)) if interleaved else head.unflatten(-1, (2, 8)).transpose(-1, -2)
            factor = torch.complex(cos[position].double(), sin[position].double())
            pairs = torch.view_as_real(torch.view_as_complex(pairs.contiguous()) * factor)
            head = pairs.flatten(-2) if interleaved else pairs.transpose(-1, -2).flatten(-2)
            return torch.cat((head.to(x.dtype), rest), -1)

        for i in range(self.B):
            n = int(lengths[i])
            keys = torch.cat((old[0][i, :n], torch.stack([turn(k[i, t], n + t) for t in range(3)])))
            assert torch.allclose(cache[0][i, : n + 3], keys, atol=2e-3 if keys.dtype is torch.float16 else 1e-6)
            queries = torch.stack([turn(q[i, t], n + t if causal else n) for t in range(3)])
            values = torch.cat((old[1][i, :n], v[i]))[None]
            expected, _ = textbook(queries[None].double(), keys[None].double(), values.double(), causal=causal)
            assert torch.allclose(o[i : i + 1].double(), expected, atol=5e-3 if o.dtype is torch.float16 else 1e-5)

    @pytest.mark.parametrize("rotary", [False, True])
    def test_the_library_appends(self, device, monkeypatch, rotary):
        """Not torch's operations; in pages behind left padding, of bfloat16 with a cache length of 0."""
        for name in ("append", "rotate"):
            monkeypatch.delattr(common, name)
        generator = torch.Generator().manual_seed(9)
        randn = lambda *shape: torch.randn(*shape, generator=generator).to(device, torch.bfloat16)
        q, k, v = (randn(self.B, 2, h, 32) for h in (4, 2, 2))
        pages = [randn(12, 10, 2, 32) for _ in "kv"]
        table = torch.tensor([[9, 1, 3, 0], [2, 4, 6, 8], [10, 5, 7, 11]], dtype=torch.int32, device=device)
        lengths, pad = (torch.tensor(x, dtype=torch.int32, device=device) for x in ([38, 0, 11], [4, 0, 11]))
        tables = [torch.ones(40, 8), torch.zeros(40, 8)] if rotary else [None, None]  # turns by nothing
        tables = [None if x is None else x.to(device, torch.bfloat16) for x in tables]
        extra = dict(cache_seqlens=lengths, cache_leftpad=pad, block_table=table, causal=True)
        o, lse = fa2.flash_attn_with_kvcache(q, *pages, k, v, *tables, **extra, return_softmax_lse=True)
        for i in range(self.B):
            flat = [x[table[i]].flatten(0, 1)[None, int(pad[i]) : int(lengths[i]) + 2] for x in pages]
            for x, new in zip(flat, (k, v)):
                assert torch.equal(x[0, -2:], new[i])
            judge(o[i : i + 1], q[i : i + 1], *flat, lse[i : i + 1], causal=True)

    @pytest.mark.parametrize("packed_k", [False, True])
    def test_packed_queries_and_new_rows(self, device, packed_k):
        """Prefill and decode in one call: 3, 0 and 1 queries with as many new keys, or 3 each; turned by nothing."""
        q, k, v, _, old, lengths = self.make(device)
        counts = [3, 0, 1]
        cu = torch.tensor([0, 3, 3, 4], dtype=torch.int32, device=device)
        packed_q = torch.cat([q[i, :n] for i, n in enumerate(counts)])
        new = [torch.cat([x[i, :n] for i, n in enumerate(counts)]) if packed_k else x for x in (k, v)]
        before = [x.clone() for x in old]
        tables = [x.to(device, q.dtype) for x in (torch.ones(40, 8), torch.zeros(40, 8))]
        extra = dict(cache_seqlens=lengths, cu_seqlens_q=cu, max_seqlen_q=3, causal=True, return_softmax_lse=True)
        o, lse, *_ = fa3.flash_attn_with_kvcache(
            packed_q, *old, *new, None, *tables, cu_seqlens_k_new=cu if packed_k else None, **extra
        )
        for i, n in enumerate(counts):
            first, length, rows = int(cu[i]), int(lengths[i]), n if packed_k else 3
            keys, values = (torch.cat((y[i, :length], x[i, :rows]))[None] for y, x in zip(before, (k, v)))
            assert torch.equal(old[0][i, : length + rows], keys[0])
            assert torch.equal(old[0][i, length + rows :], before[0][i, length + rows :])
            part = slice(first, first + n)
            if n:
                judge(o[None, part], packed_q[None, part], keys, values, lse[None, :, part], causal=True)

    def test_one_length_for_all_and_left_padding(self, device):
        q, _, _, _, old, _ = self.make(device)
        o = fa2.flash_attn_with_kvcache(q, *old, cache_seqlens=17, causal=True)
        judge(o, q, old[0][:, :17], old[1][:, :17], causal=True)
        pad = torch.tensor([2, 0, 16], dtype=torch.int32, device=device)
        o, lse = fa2.flash_attn_with_kvcache(q, *old, cache_seqlens=17, cache_leftpad=pad, return_softmax_lse=True)
        for i, first in enumerate((2, 0, 16)):
            judge(o[i : i + 1], q[i : i + 1], old[0][i : i + 1, first:17], old[1][i : i + 1, first:17], lse[i : i + 1])
        assert torch.equal(fa2.flash_attn_with_kvcache(q, *old), fa2.flash_attn_func(q, *old))

    def test_packed_queries(self, device):
        q, _, _, _, old, lengths = self.make(device)
        cu = torch.tensor([0, 1, 1, 5], dtype=torch.int32, device=device)
        packed_q = torch.cat((q[0], q[1]))[:5]
        o, lse, *rest = fa3.flash_attn_with_kvcache(
            packed_q, *old, cache_seqlens=lengths, cu_seqlens_q=cu, max_seqlen_q=4, causal=True, return_softmax_lse=True
        )
        assert rest == [None, None] and lse.shape == (4, 5)
        judge(o[None, :1], packed_q[None, :1], old[0][:1, :5], old[1][:1, :5], lse[None, :, :1], causal=True)
        judge(o[None, 1:], packed_q[None, 1:], old[0][2:, :30], old[1][2:, :30], lse[None, :, 1:], causal=True)

    def test_a_full_cache(self, device):
        """Nothing is written past it: an error on the CPU, dropped rows on CUDA, where lengths stay on the device."""
        q, k, v, _, old, _ = self.make(device)
        lengths = torch.tensor([39, 38, 40], dtype=torch.int32, device=device)
        before = [x.clone() for x in old]
        if device == "cpu":
            with pytest.raises(ValueError, match="cache_seqlens.*40"):
                fa2.flash_attn_with_kvcache(q, *old, k, v, cache_seqlens=lengths)
            assert all(torch.equal(x, y) for x, y in zip(old, before))
        else:
            o = fa2.flash_attn_with_kvcache(q, *old, k, v, cache_seqlens=lengths)
            for x, y, new in zip(old, before, (k, v)):
                y[0, 39], y[1, 38:] = new[0, 0], new[1, :2]
                assert torch.equal(x, y)
            judge(o, q, *before)
        too_many = "cache_seqlens" if device == "cpu" else r"k.shape\[1\] is 60"
        with pytest.raises(ValueError, match=too_many):
            fa2.flash_attn_with_kvcache(q, *old, *(torch.cat([x] * 20, 1) for x in (k, v)), cache_seqlens=lengths)

    def test_a_captured_step_follows_its_lengths(self):
        """A CUDA graph of one decoding step, replayed as the cache grows."""
        need("cuda")
        q, k, v, _, old, lengths = self.make("cuda")
        q, k, v = (x[:, :1].contiguous() for x in (q, k, v))
        angle = torch.outer(torch.arange(40.0), 0.3 ** torch.arange(8.0)).cuda()
        tables = angle.cos().to(q.dtype), angle.sin().to(q.dtype)
        step = lambda cache, lengths: fa2.flash_attn_with_kvcache(
            q, *cache, k, v, *tables, cache_seqlens=lengths, causal=True
        )
        cache, other, length = [x.clone() for x in old], [x.clone() for x in old], lengths.clone()
        step([x.clone() for x in old], lengths)  # plans, which loads the kernels
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            o = step(cache, length)
        for _ in range(4):
            graph.replay()
            assert torch.equal(o, step(other, length))
            assert all(torch.equal(x, y) for x, y in zip(cache, other))
            length += 1

    def test_compiled_without_a_graph_break(self, device):
        q, k, v, _, old, lengths = self.make(device)
        first, second = ([x.clone() for x in old] for _ in "ab")

        def call(q, k, v, a, b, lengths):
            return fa2.flash_attn_with_kvcache(q, a, b, k, v, cache_seqlens=lengths, causal=True)

        torch._dynamo.reset()
        o = torch.compile(call, fullgraph=True, backend="aot_eager")(q, k, v, *first, lengths)
        assert torch.equal(o, call(q, k, v, *second, lengths))
        assert all(torch.equal(x, y) for x, y in zip(first, second))


def test_combine(device):
    parts = torch.randn(3, 2, 5, 4, 8, device=device)
    lse = torch.randn(3, 2, 4, 5, device=device).transpose(2, 3)
    lse[0, 0], lse[:, 1, 2], lse[1, 1, 1] = -torch.inf, -torch.inf, torch.inf
    out, merged = fa3.flash_attn_combine(parts, lse)
    clean = torch.where(lse == torch.inf, -torch.inf, lse).double()
    total = torch.logsumexp(clean, 0)
    weights = torch.exp(clean - torch.where(total == -torch.inf, 0, total))
    assert torch.allclose(merged.double(), total, atol=1e-6) and merged.shape == (2, 5, 4)
    assert torch.allclose(out.double(), (weights[..., None] * parts).sum(0), atol=1e-6)
    assert torch.all(out[1, 2] == 0)
    target = torch.full((2, 5, 4, 8), torch.nan, dtype=torch.bfloat16, device=device)
    again, _ = fa3.flash_attn_combine(parts, lse, target)
    assert again is target and torch.allclose(target.float(), out, atol=2e-2)
    with pytest.raises(ValueError, match="lse_partial: shape"):
        fa3.flash_attn_combine(parts, lse.transpose(2, 3))
    with pytest.raises(ValueError, match="out_partial: dtype"):
        fa3.flash_attn_combine(parts.half(), lse)


def test_partial_results_merge_to_the_whole(device):
    q, k, v = operands(device, seqlen_k=90)
    parts = [
        fa3.flash_attn_func(q, k[:, a:b], v[:, a:b], return_attn_probs=True) for a, b in ((0, 30), (30, 70), (70, 90))
    ]
    out, lse = fa3.flash_attn_combine(
        torch.stack([o for o, _ in parts]).float(), torch.stack([x for _, x in parts]).transpose(2, 3)
    )
    judge(out.to(q.dtype), q, k, v, lse.transpose(1, 2))


def test_what_is_not_done_is_said():
    q, k, v = operands()
    cu = torch.tensor([0, 37], dtype=torch.int32)
    for call in (
        lambda: fa2.flash_attn_func(q, k, v, 0.1),
        lambda: fa2.flash_attn_qkvpacked_func(torch.stack((k, k, v), 2), 0.1),
        lambda: fa2.flash_attn_varlen_func(q[0], q[0], q[0], cu, cu, 37, 37, 0.1),
    ):
        with pytest.raises(NotImplementedError, match="dropout_p: 0.1"):
            call()
    for extra in (dict(qv=q), dict(q_descale=q), dict(k_descale=q), dict(v_descale=q), dict(attention_chunk=8)):
        with pytest.raises(NotImplementedError, match=next(iter(extra))):
            fa3.flash_attn_func(q, k, v, **extra)
    with pytest.raises(ValueError, match="cu_seqlens_k_new: given without new k and v"):
        fa3.flash_attn_with_kvcache(q, k, v, cu_seqlens_k_new=cu)
    metadata = fa3.get_scheduler_metadata(2, 1, 53, 4, 2, 32, cu)
    fa3.flash_attn_with_kvcache(q, k, v, scheduler_metadata=metadata)


def test_gradients_go_through_the_op(monkeypatch):
    from torch_help import textbook_backward

    from tessera import _torch_ops

    monkeypatch.setattr(_torch_ops, "run_backward", textbook_backward)
    qkv = torch.randn(2, 6, 3, 4, 16, dtype=torch.float64).requires_grad_()
    (found,) = torch.autograd.grad(fa2.flash_attn_qkvpacked_func(qkv, causal=True).square().sum(), qkv)
    (right,) = torch.autograd.grad(textbook(*qkv.unbind(2), causal=True)[0].square().sum(), qkv)
    assert torch.allclose(found, right, atol=1e-10)
