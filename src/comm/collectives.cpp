#include "c10d_names.h"
#include "direct_work.h"
#include "group_state.h"
#include "label.h"
#include "parts.h"
#include "reduce.h"
#include "work_state.h"
#include <fairshard/comm/collectives.h>
#include <fairshard/comm/profiler_range.h>

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <algorithm>

namespace fairshard::comm {
namespace {

using WorkPtr = c10::intrusive_ptr<c10d::Work>;

RedOp to_c10d(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return RedOp::SUM;
    case ReduceOp::kAvg:
      return RedOp::AVG;
    case ReduceOp::kMin:
      return RedOp::MIN;
    case ReduceOp::kMax:
      return RedOp::MAX;
  }
  TORCH_INTERNAL_ASSERT(false);
}

/// A collective that is being checked and started.
class Starter {
 public:
  Starter(const Group& group, const char* name, const std::string& label)
      : group_(group), name_(name), label_(label) {
    group.state().require_member(name);
  }

  void check(const at::Tensor& tensor, const char* argument) const {
    TORCH_CHECK_VALUE(tensor.defined(), where(), argument, " is an undefined tensor");
    TORCH_CHECK_TYPE(tensor.layout() == at::kStrided, where(), argument, " is a ", tensor.layout(),
                     " tensor, but must be dense");
    TORCH_CHECK_VALUE(tensor.is_contiguous(), where(), argument, " of sizes ", tensor.sizes(),
                      " and strides ", tensor.strides(), " is not contiguous");
  }

  void check_reducible(const at::Tensor& tensor, ReduceOp op) const {
    TORCH_CHECK_TYPE(is_reducible(tensor.scalar_type(), to_c10d(op)), where(), "tensors of dtype ",
                     tensor.scalar_type(), " cannot be reduced",
                     op == ReduceOp::kAvg ? " to an average" : "");
  }

  void check_parts(const at::Tensor& whole, const at::Tensor& part, const Bounds& bounds) const {
    const int size = group_.size();
    TORCH_CHECK_VALUE(whole.device() == part.device(), where(), "tensors on ", whole.device(),
                      " and ", part.device(), " cannot meet in one collective");
    if (bounds.empty()) {
      TORCH_CHECK_VALUE(whole.numel() == part.numel() * size, where(), "the larger tensor has ",
                        whole.numel(), " elements and the smaller ", part.numel(),
                        ", but a group of ", size, " needs ", part.numel() * size);
      return;
    }
    TORCH_CHECK_VALUE(bounds.size() == static_cast<size_t>(size) + 1, where(), "a group of ", size,
                      " needs ", size + 1, " bounds, but got ", bounds.size());
    TORCH_CHECK_VALUE(std::is_sorted(bounds.begin(), bounds.end()) && bounds.front() == 0 &&
                          bounds.back() == whole.numel(),
                      where(), "the bounds must ascend from 0 to ", whole.numel(), ", but are ",
                      c10::Join(", ", bounds));
    const int64_t own = bounds[group_.rank() + 1] - bounds[group_.rank()];
    TORCH_CHECK_VALUE(part.numel() == own, where(), "the smaller tensor has ", part.numel(),
                      " elements, but the part of rank ", group_.rank(), " has ", own);
  }

  /// Calls begin(process group, output, input) with tensors on a device that the group has; it may
  /// have the output arrive elsewhere. `ideal_bytes` is what the best algorithm must send.
  template <typename Begin>
  Work start(at::Tensor output, at::Tensor input, uint64_t ideal_bytes, const Begin& begin) const {
    const std::shared_ptr<Group::State>& state = group_.shared_state();
    state->collectives += 1;
    const LabelScope label(label_);
    auto work = std::make_shared<Work::State>();
    work->group = state;
    work->name = c10::str(name_, label_.empty() ? "" : " ", label_);
    const ProfilerRange range([&] { return work->name; });
    if (!state->route(output.device().type())) {
      const bool is_in_place = output.is_same(input);
      work->result = output;
      input = input.to(group_.control_device());
      output = is_in_place ? input : output.to(group_.control_device());
      work->arrival = output;
    }
    const Group::State::Route& route = *state->route(output.device().type());
    if (!route.direct) {
      state->uncounted_bytes += ideal_bytes;
      if (output.scalar_type() != input.scalar_type()) {  // which c10d's own backends refuse
        work->result = work->result.defined() ? work->result : output;
        output = at::empty_like(output, input.options());
        work->arrival = output;
      }
    }
    work->tells_completion = route.tells_completion;
    try {
      at::Tensor arrival = output;
      work->work = begin(*state->process_group, arrival, input);
      if (!route.direct) {
        work->number =
            state->last_calls.add(name_, arrival, label_, *work->work, route.tells_completion);
        work->device = arrival.device().type();
      }
      if (!arrival.is_same(output)) {
        work->result = work->result.defined() ? work->result : output;
        work->arrival = arrival;
      }
    } catch (c10::Error& error) {
      error.add_context(c10::str("in ", where(), "rank ", group_.rank(), " of ", group_.size()));
      throw;
    }
    return Work(std::move(work));
  }

 private:
  std::string where() const {
    return c10::str(name_, label_.empty() ? "" : " '" + label_ + "'", ": ");
  }

  const Group& group_;
  const char* name_;
  const std::string& label_;
};

/// Unequal parts one by one: c10d's lists of them are not in every backend, and NCCL's, which are
/// broadcasts in one group, were seen to lose parts (2.30).
template <typename StartPart>
WorkPtr start_each(const Group& group, const std::vector<at::Tensor>& parts,
                   const StartPart& start_part) {
  std::vector<WorkPtr> works;
  for (size_t root = 0; root < parts.size(); ++root) {
    if (parts[root].numel() > 0) {
      std::vector<at::Tensor> one{parts[root]};
      works.push_back(start_part(one, static_cast<int64_t>(root)));
    }
  }
  return c10::make_intrusive<CoalescedWork>(group.rank(), std::move(works));
}

bool is_direct(const Group& group, const at::Tensor& tensor) {
  return group.state().route(tensor.device().type())->direct != nullptr;
}

uint64_t all_but_own(const Group& group, const at::Tensor& whole) {
  return whole.nbytes() * (group.size() - 1) / group.size();
}

}  // namespace

Work all_reduce(const Group& group, const at::Tensor& tensor, ReduceOp op,
                const std::string& label) {
  const Starter starter(group, "all_reduce", label);
  starter.check(tensor, "the tensor");
  starter.check_reducible(tensor, op);
  if (group.size() == 1) {
    return {};
  }
  return starter.start(tensor, tensor, 2 * all_but_own(group, tensor),
                       [&](c10d::ProcessGroup& c10d, const at::Tensor& output, const at::Tensor&) {
                         std::vector<at::Tensor> tensors{output};
                         c10d::AllreduceOptions options;
                         options.reduceOp = to_c10d(op);
                         return c10d.allreduce(tensors, options);
                       });
}

Work broadcast(const Group& group, const at::Tensor& tensor, int root, const std::string& label) {
  const Starter starter(group, "broadcast", label);
  starter.check(tensor, "the tensor");
  TORCH_CHECK_VALUE(root >= 0 && root < group.size(), "broadcast: root ", root,
                    " is not in a group of ", group.size());
  if (group.size() == 1) {
    return {};
  }
  return starter.start(tensor, tensor, group.rank() == root ? tensor.nbytes() : 0,
                       [&](c10d::ProcessGroup& c10d, const at::Tensor& output, const at::Tensor&) {
                         std::vector<at::Tensor> tensors{output};
                         c10d::BroadcastOptions options;
                         options.rootRank = root;
                         return c10d.broadcast(tensors, options);
                       });
}

Work all_gather(const Group& group, const at::Tensor& output, const at::Tensor& input,
                const std::string& label, const Bounds& bounds) {
  const Starter starter(group, "all_gather", label);
  starter.check(output, "the output");
  starter.check(input, "the input");
  starter.check_parts(output, input, bounds);
  TORCH_CHECK_TYPE(output.scalar_type() == input.scalar_type(), "all_gather: the output is ",
                   output.scalar_type(), ", the input ", input.scalar_type());
  if (group.size() == 1) {
    output.view(-1).copy_(input.view(-1));
    return {};
  }
  const Sizes sizes = sizes_within(bounds);
  return starter.start(output, input, all_but_own(group, output),
                       [&](c10d::ProcessGroup& c10d, at::Tensor whole, at::Tensor own) {
                         if (are_equal(sizes)) {
                           return all_gather_single(c10d, whole, own);
                         }
                         const auto parts = split_by(whole.view(-1), sizes);
                         if (is_direct(group, whole)) {
                           std::vector<std::vector<at::Tensor>> outputs{parts};
                           std::vector<at::Tensor> inputs{own};
                           return c10d.allgather(outputs, inputs);
                         }
                         if (!own.is_alias_of(whole)) {
                           parts[group.rank()].copy_(own.view(-1));
                         }
                         return start_each(group, parts, [&](auto& part, int64_t root) {
                           c10d::BroadcastOptions options;
                           options.rootRank = root;
                           return c10d.broadcast(part, options);
                         });
                       });
}

Work reduce_scatter(const Group& group, const at::Tensor& output, const at::Tensor& input,
                    ReduceOp op, const std::string& label, const Bounds& bounds) {
  const Starter starter(group, "reduce_scatter", label);
  starter.check(output, "the output");
  starter.check(input, "the input");
  starter.check_parts(input, output, bounds);
  starter.check_reducible(input, op);
  TORCH_CHECK_TYPE(output.scalar_type() == input.scalar_type() ||
                       widens(input.scalar_type(), output.scalar_type()),
                   "reduce_scatter: the output is ", output.scalar_type(), ", the input ",
                   input.scalar_type());
  if (group.size() == 1) {
    output.view(-1).copy_(input.view(-1));
    return {};
  }
  const Sizes sizes = sizes_within(bounds);
  return starter.start(output, input, all_but_own(group, input),
                       [&](c10d::ProcessGroup& c10d, at::Tensor& own, at::Tensor whole) {
                         c10d::ReduceScatterOptions options;
                         options.reduceOp = to_c10d(op);
                         if (are_equal(sizes)) {
                           return reduce_scatter_single(c10d, own, whole, options);
                         }
                         const auto parts = split_by(whole.view(-1), sizes);
                         if (is_direct(group, whole)) {
                           std::vector<at::Tensor> outputs{own};
                           std::vector<std::vector<at::Tensor>> inputs{parts};
                           return c10d.reduce_scatter(outputs, inputs, options);
                         }
                         own = parts[group.rank()];
                         return start_each(group, parts, [&](auto& part, int64_t root) {
                           c10d::ReduceOptions to_root;
                           to_root.reduceOp = to_c10d(op);
                           to_root.rootRank = root;
                           return c10d.reduce(part, to_root);
                         });
                       });
}

Work shift(const Group& group, const at::Tensor& output, const at::Tensor& input, int distance,
           const std::string& label) {
  const Starter starter(group, "shift", label);
  starter.check(output, "the output");
  starter.check(input, "the input");
  const int size = group.size();
  TORCH_CHECK_VALUE(output.sizes() == input.sizes() && output.options().type_equal(input.options()),
                    "shift: the output is ", output.scalar_type(), output.sizes(), ", the input ",
                    input.scalar_type(), input.sizes());
  TORCH_CHECK_VALUE(distance >= 0 && distance < size, "shift: distance ", distance,
                    " is not below the group's size of ", size);
  if (distance == 0) {
    output.copy_(input);
    return {};
  }
  std::vector<int64_t> received(size, 0);
  std::vector<int64_t> sent(size, 0);
  received[(group.rank() - distance + size) % size] = output.numel();
  sent[(group.rank() + distance) % size] = input.numel();
  return starter.start(output, input, input.nbytes(),
                       [&](c10d::ProcessGroup& c10d, const at::Tensor& to, const at::Tensor& from) {
                         at::Tensor flat_output = to.view(-1);
                         at::Tensor flat_input = from.view(-1);
                         return all_to_all_single(c10d, flat_output, flat_input, received, sent);
                       });
}

void barrier(const Group& group, const std::string& label) {
  const Starter starter(group, "barrier", label);
  if (group.size() == 1) {
    return;
  }
  const at::Device device = group.control_device();
  const at::Tensor none = at::empty({0}, at::TensorOptions(device).dtype(at::kByte));
  starter
      .start(none, none, 0,
             [&](c10d::ProcessGroup& c10d, const at::Tensor&, const at::Tensor&) {
               c10d::BarrierOptions options;
               options.device = device;
               return c10d.barrier(options);
             })
      .wait();
}

}  // namespace fairshard::comm
