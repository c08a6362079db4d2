#include "../amp/no_autocast_cache.h"
#include "second_run.h"
#include "stand_ins.h"
#include <fairshard/nn/checkpoint.h>

#include <ATen/SequenceNumber.h>
#include <ATen/core/grad_mode.h>

#include <memory>
#include <utility>

namespace fairshard::detail {

TensorVector checkpoint_tensors(std::function<TensorVector(const TensorVector&)> run,
                                const TensorVector& inputs) {
  const NoAutocastCache no_cache;  // nor are narrow copies of weights kept
  if (!at::GradMode::is_enabled()) {
    return run(inputs);
  }
  const auto second = std::make_shared<SecondRun>(std::move(run), inputs);
  const TensorVector own_inputs = detached(inputs);
  const uint64_t since = at::sequence_number::peek();
  // With gradients on, for the graph; it is dropped at the end, with all that it has saved.
  const TensorVector results = second->run_first(own_inputs);
  const StandIns stand_ins(second, results, since, own_inputs, inputs);
  TensorVector outputs;
  for (const auto& result : results) {
    outputs.push_back(stand_ins.with_history(result));
  }
  return outputs;
}

}  // namespace fairshard::detail
