#!/usr/bin/env bash
# Trains with OpenRLHF's PPO under ecorl, on the Ray cluster that this machine is part of:
#   ray start --head --resources '{"FPGA": 2}'
#   POLICY=model REWARD=model PROMPTS=prompts.jsonl ./train.sh [further flags of OpenRLHF]
# POLICY and REWARD are checkpoint folders, PROMPTS a JSONL file with the key "input".
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
exec ${ECORL_OPENRLHF:-ecorl-openrlhf} --ecorl.config "$here/ecorl.toml" \
  --actor.model_name_or_path "$POLICY" --reward.model_name_or_path "$REWARD" \
  --data.prompt_dataset "$PROMPTS" --data.input_key input \
  --actor.num_gpus_per_node 1 --critic.num_gpus_per_node 1 \
  --ref.num_gpus_per_node 1 --reward.num_gpus_per_node 1 --vllm.num_engines 1 \
  --algo.advantage.estimator gae --algo.kl.init_coef 0.01 \
  --rollout.batch_size 128 --rollout.micro_batch_size 8 --rollout.max_new_tokens 512 \
  --train.batch_size 128 --train.micro_batch_size 4 --data.max_len 1024 \
  --ckpt.path checkpoints/openrlhf --ckpt.save_steps 20 --logger.tensorboard_dir logs/openrlhf \
  "$@"
