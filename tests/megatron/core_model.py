"""Models of megatron-core on CPUs, for make_fixtures.py and check_export.py: built from the arguments of a checkpoint, as
one of several tensor ranks, which are processes."""

import contextlib
import os
import warnings

import torch


def start_rank(rank, tensor, port):
    warnings.simplefilter("ignore")
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(tensor))
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    from megatron.core import parallel_state
    from megatron.core.tensor_parallel import get_cuda_rng_tracker
    parallel_state.initialize_model_parallel(tensor, 1)
    # Attention asks for the current GPU and its random numbers, though nothing here needs either.
    torch.cuda.current_device = lambda: "cpu"
    get_cuda_rng_tracker().fork = contextlib.nullcontext


def build(args, bert):
    from megatron.core.models.bert.bert_layer_specs import bert_layer_local_spec
    from megatron.core.models.bert.bert_model import BertModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.transformer.transformer_config import TransformerConfig
    # As core_transformer_config_from_args translates them.
    config = TransformerConfig(
        num_layers=args.num_layers, hidden_size=args.hidden_size, num_attention_heads=args.num_attention_heads,
        ffn_hidden_size=args.ffn_hidden_size, num_query_groups=args.num_query_groups if args.group_query_attention else None,
        use_cpu_initialization=True, hidden_dropout=0, attention_dropout=0, masked_softmax_fusion=False,
        normalization=args.normalization, layernorm_epsilon=args.norm_epsilon, gated_linear_unit=args.swiglu,
        activation_func=torch.nn.functional.silu if args.swiglu else torch.nn.functional.gelu,
        add_bias_linear=args.add_bias_linear, bias_activation_fusion=args.bias_gelu_fusion,
        tensor_model_parallel_size=args.tensor_model_parallel_size, apply_rope_fusion=False, bias_dropout_fusion=False)
    same = {"config": config, "vocab_size": args.padded_vocab_size, "max_sequence_length": args.max_position_embeddings,
            "parallel_output": False,
            "share_embeddings_and_output_weights": not args.untie_embeddings_and_output_weights}
    if bert:
        return BertModel(num_tokentypes=2, transformer_layer_spec=bert_layer_local_spec, **same).eval()
    return GPTModel(transformer_layer_spec=get_gpt_layer_local_spec(normalization=args.normalization),
                    position_embedding_type=args.position_embedding_type, rotary_base=args.rotary_base, **same).eval()


def gpt_logits(model, tokens):
    causal = torch.tril(torch.ones(len(tokens), len(tokens)))[None, None] < 0.5
    with torch.no_grad():
        return model(torch.tensor([tokens]), torch.arange(len(tokens))[None], causal)[0]


def bert_logits(model, tokens, types, mask):
    """Of each token, and of the sequence."""
    with torch.no_grad():
        logits, classes = model(torch.tensor([tokens]), torch.tensor([mask]), tokentype_ids=torch.tensor([types]))
    return logits[0], classes[0]
