#pragma once
// Paging: a device that has memory for a few slices of a model computes with all of them, one after
// another. Slices lie in host memory, are copied into slots of the device before they are used, and
// their gradients are copied back. See docs/offload.md.

#include <fairshard/page/report.h>

#include <ATen/core/Tensor.h>
#include <torch/arg.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace fairshard::page {

/// What a Pager is made with.
struct PagerOptions {
  // Behaviour
  /// The device that computes.
  TORCH_ARG(at::Device, device) = at::kCPU;
  /// The dtype of weights and gradients on the device and on the way; that of the parameters if
  /// empty.
  TORCH_ARG(std::optional<at::ScalarType>, param_dtype);
  /// Values between slices wait for backward in host memory. Only for slices that are computed
  /// again in backward: nobody else may use what they are given.
  TORCH_ARG(bool, offload_activations) = false;

  // Performance
  /// Slices that are copied ahead of the one that computes.
  TORCH_ARG(int64_t, prefetch) = 1;
  /// Device memory for weights. What is beyond the slots that prefetching needs keeps slices from
  /// forward to backward.
  TORCH_ARG(std::optional<int64_t>, device_budget_bytes);
  /// Host memory for weights and gradients; slices beyond it lie in files in spill_dir.
  TORCH_ARG(std::optional<int64_t>, host_budget_bytes);
  /// The folder of these files.
  TORCH_ARG(std::string, spill_dir);
  /// Keeps times of all that is done, for Pager::take_spans().
  TORCH_ARG(bool, record_spans) = false;
};

/// A gradient in host memory, and what it is the gradient of.
struct Arrival {
  /// Of the parameter, which may be swapped meanwhile.
  const c10::TensorImpl* identity;
  at::Tensor parameter;
  /// The weight in the device's dtype, if the parameter has another one.
  at::Tensor image;
  at::Tensor gradient;
};

class PagedSlice;

/// Pages parameters. Between passes they are what they always were: tensors in host memory, with
/// gradients there. One pass at a time; not thread-safe but for what consumers call.
class Pager : public std::enable_shared_from_this<Pager> {
 public:
  static constexpr int64_t kNone = -1;

  /// `common` are parameters that all slices may use: they are on the device during the whole pass.
  /// Throws before anything has changed.
  Pager(const std::vector<std::vector<at::Tensor>>& slices, const std::vector<at::Tensor>& common,
        const PagerOptions& options);
  ~Pager();
  Pager(const Pager&) = delete;
  Pager& operator=(const Pager&) = delete;

  /// Starts a pass. Weights are taken from the parameters as they are now. `keeps_graph` tells that
  /// a backward may come.
  void begin(bool keeps_graph);

  /// The values go from the slice that computes (or from before all) to slice `to` (kNone: to after
  /// all, which ends the forward). Returns the values to go on with; their backward goes the other
  /// way. Values that require no gradient may be left out.
  std::vector<at::Tensor> cross(int64_t to, const std::vector<at::Tensor>& values);

  /// The slice that computes.
  int64_t current() const { return current_; }

  /// After an error in a pass: parameters are in host memory again.
  void abandon();

  /// Gradients of slice number (slices: the common parameters) are given to `consumer` in the
  /// thread of backward, as soon as they are on their way, and not to the parameters.
  void set_consumer(std::function<void(size_t slice)> consumer) { consumer_ = std::move(consumer); }
  /// Called before a slice's weights are read, or its gradients written: whoever has got gradients
  /// of it before and changes the weights by them has done so when it returns.
  void set_before_use(std::function<void(size_t slice)> call) { before_use_ = std::move(call); }
  /// Called at the end of every backward, when gradients are where they belong.
  void set_after_backward(std::function<void()> call) { after_backward_ = std::move(call); }
  /// For the consumer, in any thread: waits for the slice's gradients.
  std::vector<Arrival> wait_for_gradients(size_t slice);
  /// For the consumer: the images were set from the parameters as they are now.
  void mark_images(size_t slice);
  /// Zeros on the same tier as the slice's weights: in memory or in a file.
  at::Tensor zeros_like(size_t slice, const at::Tensor& parameter);

  size_t slices() const { return slices_.size() - 1; }
  std::vector<at::Tensor> parameters_of(size_t slice) const;
  PagerReport report();
  /// What was recorded since the last call; see PagerOptions::record_spans.
  std::vector<Span> take_spans();
  /// Adds what a consumer did to what is recorded.
  void record_span(const std::string& track, const std::string& name,
                   std::chrono::steady_clock::time_point start);

 private:
  struct Slot;
  struct Streams;
  struct BackwardGuard;
  enum class Phase { kIdle, kForward, kBackward };

  void take_host_memory();
  void take_device_memory();
  void cross_forward(int64_t to);
  void cross_backward(int64_t from, int64_t to);
  void begin_backward();
  void finish_backward();
  void end_forward();
  void enter(size_t slice);
  void leave(size_t slice);
  void leave_with_gradients(size_t slice);
  void fill(size_t slice);
  void prefetch(int64_t slice);
  int64_t choose_slot(int64_t wanted, bool must) const;
  void publish(size_t slice);
  void collect_waits();
  PagedSlice& common() { return *slices_.back(); }

  PagerOptions options_;
  /// The last is that of the common parameters, which has the last slot for itself.
  std::vector<std::unique_ptr<PagedSlice>> slices_;
  std::vector<Slot> slots_;
  std::unique_ptr<Streams> streams_;
  std::vector<size_t> pending_;
  std::vector<bool> is_spilled_;
  std::function<void(size_t)> consumer_;
  std::function<void(size_t)> before_use_;
  std::function<void()> after_backward_;
  PagerReport report_;
  Phase phase_ = Phase::kIdle;
  bool keeps_graph_ = false;
  int64_t current_ = kNone;
  int backward_ = -1;
};

/// The device with its number, if it is there; throws if not.
at::Device checked_device(at::Device device);

}  // namespace fairshard::page
