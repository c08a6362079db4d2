#include <fairshard/comm/collectives.h>
#include <fairshard/nn/sharded_data_parallel.h>

#include <c10/util/Exception.h>

#include <unordered_set>

namespace fairshard {
namespace {

std::vector<shard::Parameter> parameters_of(const torch::nn::Module& module) {
  std::vector<shard::Parameter> result;
  for (const auto& item : module.named_parameters()) {
    result.push_back({item.key(), item.value()});
  }
  return result;
}

/// A trainable parameter that no optimizer has would silently stay as it is, with unreduced
/// gradients.
void check_all_owned(const torch::nn::Module& module,
                     const std::vector<std::shared_ptr<shard::FlatParameters>>& parts) {
  std::unordered_set<const c10::TensorImpl*> owned;
  for (const auto& part : parts) {
    for (const auto& parameter : part->parameters()) {
      owned.insert(parameter.tensor.unsafeGetTensorImpl());
    }
  }
  for (const auto& item : module.named_parameters()) {
    TORCH_CHECK_VALUE(!item.value().requires_grad() || item.value().numel() == 0 ||
                          owned.count(item.value().unsafeGetTensorImpl()) > 0,
                      "parameter '", item.key(),
                      "' requires a gradient, but no sharded optimizer has it: give it to "
                      "an OSS, or freeze it with requires_grad_(false)");
  }
}

}  // namespace

DataParallelBase::DataParallelBase(comm::Group group, std::shared_ptr<torch::nn::Module> module,
                                   const std::vector<std::reference_wrapper<OssBase>>& optimizers,
                                   const DataParallelOptions& options)
    : group_(std::move(group)), module_(std::move(module)), options_(options) {
  const bool is_replicated = options.mode() == DataParallelMode::kReplicated;
  TORCH_CHECK_VALUE(is_replicated == optimizers.empty(), "ShardedDataParallel: the mode is ",
                    is_replicated ? "replicated, which takes no OSS, but got "
                                  : "sharded, which needs at least one OSS, but got ",
                    optimizers.size());
  if (is_replicated) {
    parts_.push_back(std::make_shared<shard::FlatParameters>(
        group_, parameters_of(*module_),
        shard::PlanOptions().bucket_bytes(options.bucket_bytes())));
  }
  for (OssBase& optimizer : optimizers) {
    parts_.insert(parts_.end(), optimizer.parts().begin(), optimizer.parts().end());
  }
  check_all_owned(*module_, parts_);
  const auto mode = options.mode() == DataParallelMode::kGradients
                        ? shard::GradientMode::kSharded
                        : shard::GradientMode::kReplicated;
  for (const auto& part : parts_) {
    if (options.sync_models_at_startup()) {
      part->broadcast(0);
    }
    reducers_.push_back(std::make_unique<shard::GradReducer>(
        part, shard::ReducerOptions().mode(mode).buckets_in_flight(options.buckets_in_flight())));
  }
  if (options.sync_models_at_startup()) {
    sync_buffers();
  }
}

void DataParallelBase::zero_grad(bool set_to_none) {
  module_->zero_grad(set_to_none);
  for (const auto& part : parts_) {
    part->clear_gradients();
  }
}

void DataParallelBase::before_forward() {
  for (const auto& reducer : reducers_) {
    reducer->prepare();
  }
  if (options_.broadcast_buffers() && module_->is_training() && reducers_.front()->sync()) {
    sync_buffers();
  }
}

void DataParallelBase::sync_buffers() {
  const at::NoGradGuard no_grad;
  std::vector<std::pair<at::Tensor, at::Tensor>> copies;
  std::vector<comm::Work> works;
  for (const auto& item : module_->named_buffers()) {
    if (!item.value().defined()) {
      continue;
    }
    copies.emplace_back(item.value(), item.value().contiguous());
    works.push_back(comm::broadcast(group_, copies.back().second, 0, "buffer " + item.key()));
  }
  for (size_t i = 0; i < works.size(); ++i) {
    works[i].wait();
    if (!copies[i].first.is_same(copies[i].second)) {
      copies[i].first.copy_(copies[i].second);
    }
  }
}

void DataParallelBase::set_sync(bool is_on) {
  for (const auto& reducer : reducers_) {
    reducer->set_sync(is_on);
  }
}

}  // namespace fairshard
