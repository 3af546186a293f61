"""Tiny random transformers models for tests: every attention layout in milliseconds, no download."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    LlamaConfig,
    MambaConfig,
    MistralConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
)

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# As Qwen's: tools at the head, calls and answers in tags.
TOOL_TEMPLATE = (
    "{% if tools %}<|im_start|>tools\n{% for t in tools %}{{ t | tojson }}\n{% endfor %}<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}"
    '{% for c in m[\'tool_calls\'] or [] %}\n<tool_call>\n{"name": "{{ c.function.name }}", "arguments": '
    "{{ c.function.arguments | tojson }}}\n</tool_call>{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def tiny_tokenizer(template: str | None = TEMPLATE) -> PreTrainedTokenizerFast:
    """One token per byte, with chat special tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: index for index, token in enumerate([*SPECIAL, *alphabet])}
    core = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens(SPECIAL)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    tokenizer.chat_template = template
    return tokenizer


SIZE: dict[str, Any] = {
    "vocab_size": 259,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 1024,
    "eos_token_id": 2,
    "bos_token_id": 1,
    "pad_token_id": 0,
}

CONFIGS: dict[str, Any] = {
    "llama": lambda: LlamaConfig(**SIZE),
    "qwen2": lambda: Qwen2Config(**SIZE),
    "mistral-sliding": lambda: MistralConfig(**SIZE, sliding_window=24),
    "gemma3-mixed": lambda: Gemma3TextConfig(
        **SIZE, sliding_window=16, layer_types=["sliding_attention", "full_attention"]
    ),
    "gpt2": lambda: GPT2Config(
        vocab_size=259, n_embd=32, n_layer=2, n_head=4, n_positions=1024, eos_token_id=2, bos_token_id=1
    ),
    "mamba": lambda: MambaConfig(
        vocab_size=259, hidden_size=32, num_hidden_layers=2, state_size=4, eos_token_id=2, bos_token_id=1
    ),
}


def tiny_model(kind: str = "llama", seed: int = 0) -> Any:
    """A random model of one attention layout, in float32 and eval mode, with well-separated logits."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(CONFIGS[kind](), dtype=torch.float32).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.mul_(6.0)  # initial weights of 0.02 would make every token about equally likely
    return model


def saved_tiny(folder: Path, model: Any = None) -> Path:
    """``folder``, with a model (the tiny one where none is given) and its tokenizer, as ``--model`` takes it."""
    (tiny_model() if model is None else model).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


def tiny_gguf(path: Path, model: Any, template: str = TEMPLATE) -> Path:
    """``path``, with the weights of the tiny qwen2 ``model`` and the tokenizer above, in float32."""
    import gguf

    config, vocab = model.config, tiny_tokenizer().get_vocab()
    writer = gguf.GGUFWriter(str(path), "qwen2")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(sorted(vocab, key=lambda token: vocab[token]))
    writer.add_token_types([3 if token in SPECIAL else 1 for token in sorted(vocab, key=lambda token: vocab[token])])
    writer.add_token_merges(["Ġ Ġ"])  # llama.cpp wants one; its product is no token
    writer.add_eos_token_id(vocab["<|im_end|>"])
    writer.add_add_bos_token(False)
    writer.add_chat_template(template)
    for name, weight in model.state_dict().items():
        for theirs, ours in GGUF_NAMES:
            name = name.replace(theirs, ours)
        writer.add_tensor(name, weight.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


GGUF_NAMES = (
    *(("model.layers.", "blk."), ("model.embed_tokens", "token_embd"), ("model.norm", "output_norm")),
    *(("lm_head", "output"), ("self_attn.o_proj", "attn_output"), ("self_attn.", "attn_"), ("mlp.", "ffn_")),
    *(("input_layernorm", "attn_norm"), ("post_attention_layernorm", "ffn_norm"), ("_proj", "")),
)
