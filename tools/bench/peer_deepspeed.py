"""DeepSpeed ZeRO-3 on its CPU accelerator, optimizer and parameters on cpu or nvme."""
import os

os.environ.setdefault("DS_ACCELERATOR", "cpu")
for name, value in (("RANK", "0"), ("WORLD_SIZE", "1"), ("LOCAL_RANK", "0"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "29533")):
    os.environ.setdefault(name, value)
import deepspeed

import peer_common as common

arguments = common.parser(__doc__)
arguments.add_argument("--device", choices=["cpu", "nvme"], default="nvme")
arguments.add_argument("--lean", action="store_true", help="fewest buffers, no pipelining; else 64 + 24 buffers, pipelined")
arguments.add_argument("--folder", default="/var/tmp/zinf-bench-deepspeed")
options = arguments.parse_args()
largest = 50257 * common.SHAPES[options.model][2]
zero = {"stage": 3, "overlap_comm": False, "contiguous_gradients": True, "sub_group_size": 50_000_000,
        "offload_optimizer": {"device": options.device, "pin_memory": True},
        "offload_param": {"device": options.device, "pin_memory": True}}
if options.device == "nvme":
    zero["offload_optimizer"] |= {"nvme_path": options.folder, "buffer_count": 8 if options.lean else 24,
                                  "pipeline_read": not options.lean, "pipeline_write": not options.lean}
    zero["offload_param"] |= {"nvme_path": options.folder, "buffer_count": 5 if options.lean else 64,
                              "buffer_size": largest + 1024, "max_in_cpu": 0}
if options.lean:
    zero |= {"stage3_max_live_parameters": 0, "stage3_max_reuse_distance": 0, "stage3_prefetch_bucket_size": 0}
config = {"train_micro_batch_size_per_gpu": options.micro_batch, "gradient_accumulation_steps": options.accumulation,
          "gradient_clipping": 1.0, "zero_optimization": zero, "zero_allow_untested_optimizer": True,
          "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "weight_decay": 0.01}}, "steps_per_print": 10**9,
          "aio": {"block_size": 1 << 20, "queue_depth": 32, "intra_op_parallelism": 1, "single_submit": False, "overlap_events": True}}
if options.dtype == "bf16":
    config["bf16"] = {"enabled": True}
deepspeed.init_distributed(dist_backend="gloo")
with deepspeed.zero.Init(config_dict_or_path=config):
    model = common.make_model(options.model)
model.train()
model.gradient_checkpointing_enable()
parameters = sum(getattr(p, "ds_numel", p.numel()) for p in model.parameters())
engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)


def micro_step(ids, last):
    loss = engine(input_ids=ids, labels=ids).loss
    engine.backward(loss)
    engine.step()
    return loss


common.measure(micro_step, options, parameters)
