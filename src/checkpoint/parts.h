#pragma once
// The parts that Checkpoint knows by itself.

#include <fairshard/checkpoint/part.h>
#include <fairshard/nn/slowmo.h>
#include <fairshard/optim/grad_scaler.h>
#include <fairshard/optim/schedule.h>

#include <torch/optim/optimizer.h>

#include <memory>
#include <string>

namespace fairshard {

std::shared_ptr<CheckpointPart> make_part(torch::optim::Optimizer& optimizer);
std::shared_ptr<CheckpointPart> make_part(ShardedGradScaler& scaler);
std::shared_ptr<CheckpointPart> make_part(LearningRate& rate);
std::shared_ptr<CheckpointPart> make_part(SlowMoBase& slowmo);
std::shared_ptr<CheckpointPart> make_part(const at::Tensor& tensor);
std::shared_ptr<CheckpointPart> make_rng_part();

}  // namespace fairshard
