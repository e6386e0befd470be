"""flash_attn_with_kvcache on wrong arguments: each is named as the caller names it, and the cache stays as it was."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed: NumPy has no bfloat16 without it")

from torch_help import cache_operands  # noqa: E402

import tessera.compat.flash_attn as fa2  # noqa: E402

WRONG = {
    "scale of words": (dict(softmax_scale="much"), "scale: expected a number"),
    "scale": (dict(softmax_scale=float("nan")), "softmax_scale: nan"),
    "window": (dict(window_size=(-5, 0)), "left is -5"),
    "window of one": (dict(window_size=(1,)), r"window_size: \(1,\)"),
    "softcap": (dict(softcap=-1.0), "softcap is -1"),
    "splits": (dict(num_splits=-1), "num_splits is -1"),
    "slopes": (dict(alibi_slopes=torch.zeros(3)), r"alibi_slopes: shape \[3\]"),
    "padding": (dict(cache_leftpad=torch.tensor([0, 0, 31], dtype=torch.int32)), r"cache_leftpad\[2\] is 31"),
    "paddings": (dict(cache_leftpad=torch.zeros(2, dtype=torch.int32)), r"cache_leftpad: shape \[2\]"),
    "row": (dict(cache_batch_idx=torch.tensor([0, 1, 3], dtype=torch.int32)), r"cache_batch_idx\[2\] is 3"),
    "rows": (dict(cache_batch_idx=torch.zeros(3)), "cache_batch_idx: dtype float32"),
    "page": (dict(block_table=torch.tensor([[0], [1], [3]], dtype=torch.int32)), r"block_table\[2, 0\] is 3"),
    "pages": (dict(block_table=torch.zeros(2, 1, dtype=torch.int32)), r"block_table: shape \[2, 1\]"),
    "lengths": (dict(cache_seqlens=torch.tensor([5, -1, 30], dtype=torch.int32)), r"cache_seqlens\[1\] is -1"),
    "full": (dict(cache_seqlens=39), r"cache_seqlens\[0\] is 39 and 3 new rows"),
    "lengths of words": (dict(cache_seqlens=[5, 0, 30]), "cache_seqlens: expected a tensor or one number"),
    "k": (dict(k=torch.zeros(3, 3, 2, 16)), r"k: shape \[3, 3, 2, 16\]"),
    "v": (dict(v=torch.zeros(3, 2, 2, 32)), r"v: shape \[3, 2, 2, 32\]"),
    "dtype of v": (dict(v=torch.zeros(3, 3, 2, 32, dtype=torch.float64)), "v: dtype float64"),
    "q": (dict(q=torch.zeros(3, 3, 4, 16)), "k_cache: head dimension 32, but q has 16"),
    "dtype of q": (dict(q=torch.zeros(3, 3, 4, 32, dtype=torch.float64)), "k_cache.dtype is 2"),
    "tables": (dict(rotary_cos=torch.ones(33, 8), rotary_sin=torch.ones(33, 9)), r"rotary_sin: shape \[33, 9"),
    "one table": (dict(rotary_cos=torch.ones(33, 8)), "rotary_sin is missing"),
    "short tables": (
        dict(rotary_cos=torch.ones(32, 8), rotary_sin=torch.ones(32, 8)),
        r"rotary_cos.shape\[0\] is 32; expected at least 33",
    ),
    "dtype of tables": (
        dict(rotary_cos=torch.ones(40, 8).half(), rotary_sin=torch.ones(40, 8).half()),
        "rotary_cos: dtype float16, expected float32",
    ),
}


@pytest.mark.parametrize("change, message", WRONG.values(), ids=WRONG.keys())
def test_a_wrong_argument_is_named_and_leaves_the_cache_as_it_was(change, message):
    q, k, v, _, old, lengths = cache_operands("cpu")
    before = [x.clone() for x in old]
    arguments = dict(q=q, k_cache=old[0], v_cache=old[1], k=k, v=v, cache_seqlens=lengths) | change
    with pytest.raises((ValueError, TypeError), match=message):
        fa2.flash_attn_with_kvcache(**arguments)
    assert all(torch.equal(x, y) for x, y in zip(old, before))


def test_new_rows_are_taken_back_where_torch_appends():
    """Under autocast torch's operations append, before attention finds its arguments wrong."""
    q, k, v, _, old, lengths = cache_operands("cpu")
    before = [x.clone() for x in old]
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(ValueError, match="softcap is -1"):
        fa2.flash_attn_with_kvcache(q, *old, k, v, cache_seqlens=lengths, softcap=-1.0)
    assert all(torch.equal(x, y) for x, y in zip(old, before))


def test_calls_that_make_no_sense():
    q, k, v, _, old, lengths = cache_operands("cpu")
    cases = [
        (dict(k=k), "k and v"),
        (dict(k=k, v=v), "cache_seqlens: missing"),
        (dict(rotary_cos=torch.ones(9, 8), rotary_sin=torch.ones(9, 8)), "rotary_cos"),
        (dict(cache_seqlens=lengths.long()), "cache_seqlens: dtype torch.int64"),
        (dict(cache_seqlens=lengths[:2]), r"cache_seqlens: shape \[2\]"),
    ]
    for extra, message in cases:
        with pytest.raises(ValueError, match=message):
            fa2.flash_attn_with_kvcache(q, *old, **extra)
