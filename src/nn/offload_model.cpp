#include "../amp/no_autocast_cache.h"
#include <fairshard/nn/checkpoint.h>
#include <fairshard/nn/offload_model.h>
#include <fairshard/optim/fused.h>
#include <fairshard/page/micro_batches.h>
#include <fairshard/page/slicing.h>
#include <fairshard/page/step_plan.h>

#include <c10/util/Exception.h>

namespace fairshard {

using page::StepOptions;
using page::StepRule;
using torch::optim::OptimizerParamGroup;

namespace {

using BlockValues = OffloadBlock::Values;

std::vector<OffloadBlock> blocks_of(const torch::nn::Sequential& model) {
  TORCH_CHECK_VALUE(!model->is_empty(), "OffloadModel: the Sequential is empty");
  std::vector<OffloadBlock> blocks;
  for (torch::nn::AnyModule block : *model) {  // a handle: the module itself is shared
    blocks.push_back({block.ptr(), [block](const BlockValues& inputs) mutable -> BlockValues {
                        return {block.any_forward(inputs.at(0)).get<at::Tensor>()};
                      }});
  }
  return blocks;
}

/// Leaves buffers as they were, when a slice runs for the second time. Their version counters do
/// not move, because autograd may have saved them.
class BufferGuard {
 public:
  explicit BufferGuard(std::vector<at::Tensor> buffers) : buffers_(std::move(buffers)) {
    for (const at::Tensor& buffer : buffers_) {
      before_.push_back(buffer.clone());
    }
  }
  ~BufferGuard() {
    const at::NoGradGuard no_grad;
    for (size_t i = 0; i < buffers_.size(); ++i) {
      buffers_[i].variable_data().copy_(before_[i]);
    }
  }
  BufferGuard(const BufferGuard&) = delete;
  BufferGuard& operator=(const BufferGuard&) = delete;

 private:
  std::vector<at::Tensor> buffers_;
  std::vector<at::Tensor> before_;
};

template <typename AdamOptions>
StepOptions adam_options(StepRule rule, const OptimizerParamGroup& group) {
  const auto& own = static_cast<const AdamOptions&>(group.options());
  return StepOptions()
      .rule(rule)
      .lr(own.lr())
      .beta1(std::get<0>(own.betas()))
      .beta2(std::get<1>(own.betas()))
      .eps(own.eps())
      .weight_decay(own.weight_decay())
      .amsgrad(own.amsgrad());
}

StepOptions sgd_options(const OptimizerParamGroup& group) {
  const auto& own = static_cast<const torch::optim::SGDOptions&>(group.options());
  return StepOptions()
      .rule(StepRule::kSgd)
      .lr(own.lr())
      .momentum(own.momentum())
      .dampening(own.dampening())
      .weight_decay(own.weight_decay())
      .nesterov(own.nesterov());
}

StepOptions step_options(const torch::optim::Optimizer& optimizer,
                         const OptimizerParamGroup& group) {
  if (dynamic_cast<const AdamW*>(&optimizer)) {
    return adam_options<torch::optim::AdamWOptions>(StepRule::kAdamW, group);
  }
  if (dynamic_cast<const Adam*>(&optimizer)) {
    return adam_options<torch::optim::AdamOptions>(StepRule::kAdam, group);
  }
  return sgd_options(group);
}

/// A field of the optimizer's state of a parameter, by Python's name; both are made if need be.
at::Tensor& field_of(torch::optim::Optimizer& optimizer, const at::Tensor& parameter,
                     const std::string& name) {
  auto& slot = optimizer.state()[parameter.unsafeGetTensorImpl()];
  if (!slot) {
    slot = std::make_unique<FusedState>();
  }
  auto& state = static_cast<FusedState&>(*slot);
  return name == "step"             ? state.step
         : name == "exp_avg_sq"     ? state.square_average
         : name == "max_exp_avg_sq" ? state.largest_square_average
                                    : state.average;
}

}  // namespace

OffloadModel::OffloadModel(const torch::nn::Sequential& model, const OffloadOptions& options)
    : OffloadModel(blocks_of(model), options) {
  sequential_ = model;
}

OffloadModel::OffloadModel(std::vector<OffloadBlock> blocks, const OffloadOptions& options)
    : blocks_(std::move(blocks)), options_(options) {
  TORCH_CHECK_VALUE(options.num_microbatches() >= 1, "num_microbatches is ",
                    options.num_microbatches(), ", but must be at least 1");
  TORCH_CHECK_VALUE(options.checkpoint_activation() || !options.offload_activations(),
                    "offload_activations needs checkpoint_activation");
  std::vector<BlockValues> parameters;
  parameters.reserve(blocks_.size());
  for (const OffloadBlock& block : blocks_) {
    TORCH_CHECK_VALUE(block.forward, "block ", parameters.size(), " of ", blocks_.size(),
                      " to offload has no forward");
    parameters.push_back(block.module ? block.module->parameters() : BlockValues());
  }
  const auto slicing = page::slice_blocks(parameters, {}, options.num_slices());
  slices_.resize(slicing.slices.size());
  for (size_t i = 0; i < blocks_.size(); ++i) {
    slices_[slicing.slice_of_block[i]].push_back(i);
  }
  options_.device(page::checked_device(options.device()));
  pager_ = std::make_shared<page::Pager>(slicing.slices, slicing.common,
                                         page::PagerOptions()
                                             .device(options_.device())
                                             .param_dtype(options.param_dtype())
                                             .offload_activations(options.offload_activations())
                                             .prefetch(options.prefetch())
                                             .device_budget_bytes(options.device_budget_bytes())
                                             .host_budget_bytes(options.host_budget_bytes())
                                             .spill_dir(options.spill_dir())
                                             .record_spans(options.record_spans()));
  move_buffers();
}

OffloadModel::~OffloadModel() = default;

void OffloadModel::move_buffers() {
  for (const OffloadBlock& block : blocks_) {
    for (at::Tensor& buffer : block.module ? block.module->buffers() : BlockValues()) {
      buffer.set_data(buffer.to(options_.device()));
    }
  }
}

at::Tensor OffloadModel::forward(const at::Tensor& input) { return forward(Values{input}).at(0); }

OffloadModel::Values OffloadModel::forward(const Values& inputs) {
  TORCH_CHECK_VALUE(
      sequential_.is_empty() || sequential_->size() == blocks_.size(), "the Sequential had ",
      blocks_.size(), " modules when it was offloaded, and has ",
      sequential_.is_empty() ? 0 : sequential_->size(), " now: make a new OffloadModel of it");
  plan_step();
  const NoAutocastCache no_cache;
  Values here;
  for (const at::Tensor& input : inputs) {
    here.push_back(input.to(options_.device()));
  }
  std::vector<Values> parts = page::cut_batch(here, options_.num_microbatches());
  pager_->begin(at::GradMode::is_enabled());
  try {
    for (size_t slice = 0; slice <= slices_.size(); ++slice) {
      const bool is_end = slice == slices_.size();
      Values all;
      for (const Values& part : parts) {
        all.insert(all.end(), part.begin(), part.end());
      }
      all = pager_->cross(is_end ? page::Pager::kNone : static_cast<int64_t>(slice), all);
      auto next = all.begin();
      for (Values& part : parts) {
        std::copy_n(next, part.size(), part.begin());
        next += static_cast<std::ptrdiff_t>(part.size());
        if (!is_end) {
          part = options_.checkpoint_activation() ? run_checkpointed(slice, part)
                                                  : run_slice(slice, part);
        }
      }
    }
  } catch (...) {
    pager_->abandon();
    throw;
  }
  return page::join_batches(parts);
}

OffloadModel::Values OffloadModel::run_slice(size_t slice, const Values& inputs) {
  Values values = inputs;
  for (const size_t block : slices_[slice]) {
    values = blocks_[block].forward(values);
  }
  return values;
}

OffloadModel::Values OffloadModel::run_checkpointed(size_t slice, const Values& inputs) {
  Values buffers;
  std::vector<OffloadBlock> blocks;  // copies: the graph may live longer than this model
  for (const size_t block : slices_[slice]) {
    blocks.push_back(blocks_[block]);
    const auto own = blocks_[block].module ? blocks_[block].module->buffers() : Values();
    buffers.insert(buffers.end(), own.begin(), own.end());
  }
  return checkpoint(
      [blocks, buffers, is_first = true](const Values& values) mutable {
        const bool keeps_buffers = !std::exchange(is_first, false);
        const BufferGuard guard(keeps_buffers ? buffers : Values());
        Values results = values;
        for (const OffloadBlock& block : blocks) {
          results = block.forward(results);
        }
        return results;
      },
      inputs);
}

void OffloadModel::step_in_backward(torch::optim::Optimizer& optimizer) {
  TORCH_CHECK_VALUE(dynamic_cast<AdamW*>(&optimizer) || dynamic_cast<Adam*>(&optimizer) ||
                        dynamic_cast<SGD*>(&optimizer),
                    "step_in_backward takes fairshard::AdamW, Adam or SGD; any other optimizer can "
                    "step the parameters after backward");
  worker_ = std::make_unique<page::OptimizerWorker>(pager_, options_.optimizer_threads());
  optimizer_ = &optimizer;
}

void OffloadModel::set_stepping(bool is_on) {
  TORCH_CHECK(worker_, "set_stepping() is for an OffloadModel after step_in_backward()");
  worker_->set_stepping(is_on);
}

void OffloadModel::plan_step() {
  if (!worker_) {
    return;
  }
  worker_->wait_for_plans();
  if (!at::GradMode::is_enabled()) {
    return;
  }
  const page::StateAccess states{
      [this](const at::Tensor& parameter, const std::string& field) {
        return field_of(*optimizer_, parameter, field);
      },
      [this](const at::Tensor& parameter, const std::string& field, const at::Tensor& value) {
        field_of(*optimizer_, parameter, field) = value;
      }};
  for (const auto& group : optimizer_->param_groups()) {
    page::plan_steps(*worker_, group.params(), step_options(*optimizer_, group), states);
  }
  const Values lacking = worker_->without_plan();
  TORCH_CHECK_VALUE(lacking.empty(), lacking.size(), " parameter(s) of the offloaded model (",
                    name_of(lacking.front()), " of shape ", lacking.front().sizes(),
                    " is the first) require a gradient, but are not in the optimizer that was "
                    "given to step_in_backward(): give it to it or freeze it");
}

std::string OffloadModel::name_of(const at::Tensor& parameter) const {
  for (size_t i = 0; i < blocks_.size(); ++i) {
    const auto named = blocks_[i].module ? blocks_[i].module->named_parameters()
                                         : torch::OrderedDict<std::string, at::Tensor>();
    for (const auto& item : named) {
      if (item.value().is_same(parameter)) {
        return c10::str("'", i, ".", item.key(), "'");
      }
    }
  }
  return "one";
}

void OffloadModel::wait_for_step() {
  if (worker_) {
    worker_->wait();
  }
}

}  // namespace fairshard
