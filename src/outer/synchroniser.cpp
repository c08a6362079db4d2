#include "synchroniser_impl.h"
#include <fairshard/comm/profiler_range.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>

namespace fairshard::outer {

Synchroniser::Impl::Impl(Nodes nodes_, const OuterOptions& options_, bool is_partitioned)
    : nodes(std::move(nodes_)),
      options((check_options(options_), options_)),
      is_partitioned_(is_partitioned),
      schedule_(options),
      optimizer_(make_outer_optimizer(options)) {
  if (options.base() == BaseAlgorithm::kSgp) {
    gossip =
        std::make_unique<PushSum>(nodes.inter_node(), options.graph(), options.overlap_gossip());
  }
}

std::string Synchroniser::Impl::label_of(const OuterBucket& bucket) const {
  return c10::str("parameters from '", parameters[bucket.slots[0].parameter].name, "' on");
}

at::Device Synchroniser::Impl::state_device(const OuterBucket& bucket) const {
  return options.host_memory() ? at::Device(at::kCPU) : bucket.device;
}

/// Narrow formats need small numbers: they carry differences from where all nodes were.
bool Synchroniser::Impl::sends_differences() const {
  return options.wire() != WireFormat::kFloat32;
}

at::Tensor Synchroniser::Impl::own_outer(const OuterBucket& bucket) const {
  return options.shard_buffers() ? bucket.outer
                                 : bucket.outer.narrow(0, bucket.begin, bucket.end - bucket.begin);
}

/// What was frozen from the start is the same everywhere until it is unfrozen. Gossip keeps one
/// weight for all and so mixes all.
bool Synchroniser::Impl::needs_sync(OuterBucket& bucket) const {
  bucket.is_frozen = bucket.is_frozen && !has_trained(bucket);
  return !bucket.is_frozen || gossip;
}

bool Synchroniser::Impl::has_trained(const OuterBucket& bucket) const {
  return std::any_of(bucket.slots.begin(), bucket.slots.end(),
                     [&](const auto& slot) { return is_trained(slot.parameter); });
}

/// Those of which a call reads or changes values, and those of which it only reads them.
bool Synchroniser::Impl::is_due() const {
  const int64_t call = report.calls + 1;
  bool is_read = false;
  for (int fragment = 0; fragment < options.fragments(); ++fragment) {
    is_read |= schedule_.is_slow(call, fragment);
  }
  return is_read || !changed_fragments(call).empty();
}

std::vector<int> Synchroniser::Impl::changed_fragments(int64_t call) const {
  std::vector<int> result;
  for (int fragment = 0; fragment < options.fragments(); ++fragment) {
    const bool is_stepped = options.delay() > 0 ? schedule_.has_arrived(call, fragment)
                                                : schedule_.is_slow(call, fragment);
    if (is_stepped || (gossip ? schedule_.is_mixing(call) : schedule_.is_average(call))) {
      result.push_back(fragment);
    }
  }
  return result;
}

void Synchroniser::Impl::check_input(const StepInput& input) const {
  const auto check = [&](const char* name, size_t count) {
    TORCH_CHECK_VALUE(count == parameters.size(), "got ", count, " ", name, " for ",
                      parameters.size(), " parameters");
  };
  if (optimizer_->uses_learning_rates()) {
    check("learning rates", input.learning_rates.size());
  }
  if (!input.masters.empty()) {
    check("full-precision parameters", input.masters.size());
    for (size_t i = 0; i < parameters.size(); ++i) {
      TORCH_CHECK_VALUE(input.masters[i].sizes() == parameters[i].tensor.sizes(),
                        "the full-precision values of '", parameters[i].name, "' are of sizes ",
                        input.masters[i].sizes(), ", the parameter of ",
                        parameters[i].tensor.sizes());
    }
  }
}

StepResult Synchroniser::Impl::step(const StepInput& input) {
  const at::NoGradGuard no_grad;
  const comm::ProfilerRange range([] { return "outer synchronise"; });
  check_input(input);
  ++report.calls;
  StepResult result;
  result.fragments = changed_fragments(report.calls);
  if (gossip) {
    step_gossip(input, result);
  } else {
    step_locally(input, result);
  }
  report.averages += result.has_averaged ? 1 : 0;
  report.slow_steps += result.stepped.empty() ? 0 : 1;
  if (result.has_averaged) {
    average_buffers(input.buffers);
  }
  return result;
}

void Synchroniser::Impl::step_locally(const StepInput& input, StepResult& result) {
  const int64_t call = report.calls;
  const bool is_average = schedule_.is_average(call);
  for (OuterBucket& bucket : buckets_) {
    if (bucket.pending && schedule_.has_arrived(call, bucket.fragment)) {
      take_slow_step(bucket, finish_average(bucket), input, result);
    }
  }
  for (OuterBucket& bucket : buckets_) {
    if ((is_average || schedule_.is_slow(call, bucket.fragment)) && needs_sync(bucket)) {
      start_average(bucket, pack(bucket, parameters, input.masters, bucket.begin, bucket.end));
    }
  }
  result.has_averaged = is_average || schedule_.ends_round(call);
  if (options.delay() > 0) {
    return;
  }
  for (OuterBucket& bucket : buckets_) {
    if (bucket.pending && is_average) {
      take_average(bucket, finish_average(bucket), input);
    } else if (bucket.pending) {
      take_slow_step(bucket, finish_average(bucket), input, result);
    }
  }
}

void Synchroniser::Impl::step_gossip(const StepInput& input, StepResult& result) {
  const int64_t call = report.calls;
  const bool is_slow = schedule_.is_slow(call, 0);
  const bool is_mixing = schedule_.is_mixing(call);
  if (!is_slow && !is_mixing) {
    return;
  }
  std::vector<at::Tensor> values;
  values.reserve(buckets_.size());
  for (const OuterBucket& bucket : buckets_) {
    values.push_back(pack(bucket, parameters, input.masters, bucket.begin, bucket.end));
  }
  if (is_slow && options.average_at_slow_step()) {
    gossip->flush(values);
    for (size_t b = 0; b < buckets_.size(); ++b) {
      start_average(buckets_[b], values[b]);
    }
    for (OuterBucket& bucket : buckets_) {
      take_slow_step(bucket, finish_average(bucket), input, result);
    }
    result.has_averaged = true;
    return;
  }
  if (is_mixing) {
    gossip->mix(values);
  }
  for (size_t b = 0; b < buckets_.size(); ++b) {
    if (is_slow) {
      take_slow_step(buckets_[b], values[b].to(state_device(buckets_[b])), input, result);
      values[b].copy_(own_outer(buckets_[b]));
    } else {
      take_average(buckets_[b], values[b], input);
    }
  }
  if (is_slow) {
    gossip->replace(values);
  }
}

void Synchroniser::Impl::start_average(OuterBucket& bucket, const at::Tensor& own) {
  const comm::ProfilerRange range([&] { return "outer average of " + label_of(bucket); });
  const at::Tensor values = own.to(state_device(bucket));
  bucket.pending = std::make_unique<PendingAverage>(
      nodes.inter_node(), sends_differences() ? own_outer(bucket) - values : values, options.wire(),
      bucket.error, label_of(bucket));
}

at::Tensor Synchroniser::Impl::finish_average(OuterBucket& bucket) {
  const at::Tensor arrived = bucket.pending->wait();
  bucket.pending.reset();
  return sends_differences() ? own_outer(bucket) - arrived : arrived;
}

/// All of a bucket, from the ranges of all ranks of the node.
at::Tensor Synchroniser::Impl::gather(const OuterBucket& bucket, const at::Tensor& own) const {
  if (is_partitioned_) {
    return own.to(bucket.device);
  }
  const at::Tensor whole =
      at::empty({bucket.length()}, at::device(bucket.device).dtype(bucket.dtype));
  const at::Tensor place = whole.narrow(0, bucket.begin, bucket.end - bucket.begin);
  place.copy_(own);
  comm::all_gather(nodes.intra_node(), whole, place, "synchronised parameters", bucket.bounds)
      .wait();
  return whole;
}

void Synchroniser::Impl::take_slow_step(OuterBucket& bucket, const at::Tensor& average,
                                        const StepInput& input, StepResult& result) {
  const comm::ProfilerRange range([&] { return "outer step of " + label_of(bucket); });
  at::Tensor whole;
  if (options.shard_buffers()) {
    optimizer_->step(bucket.outer, bucket.momentum, average,
                     runs_of(bucket, input.learning_rates, bucket.begin, bucket.end));
    whole = gather(bucket, bucket.outer);
  } else {
    whole = gather(bucket, average);
    optimizer_->step(bucket.outer, bucket.momentum, whole.to(bucket.outer.device()),
                     runs_of(bucket, input.learning_rates, 0, bucket.length()));
    whole.copy_(bucket.outer);
  }
  unpack(bucket, parameters, input.masters, whole, options.local_weight());
  for (const auto& slot : bucket.slots) {
    result.stepped.push_back(slot.parameter);
  }
}

void Synchroniser::Impl::take_average(OuterBucket& bucket, const at::Tensor& average,
                                      const StepInput& input) {
  const at::Tensor whole = gather(bucket, average);
  unpack(bucket, parameters, input.masters, whole, 0);
  if (bucket.outer.defined() && !optimizer_->uses_outer()) {
    // Only the wire's differences need it: they are taken from the last average.
    bucket.outer.copy_(options.shard_buffers() ? average : whole);
  }
}

void Synchroniser::Impl::average(const std::vector<at::Tensor>& masters) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> values;
  values.reserve(buckets_.size());
  for (const OuterBucket& bucket : buckets_) {
    values.push_back(pack(bucket, parameters, masters, bucket.begin, bucket.end));
  }
  if (gossip) {
    gossip->flush(values);
  }
  for (size_t b = 0; b < buckets_.size(); ++b) {
    PendingAverage pending(nodes.inter_node(), values[b], WireFormat::kFloat32, {},
                           "final average");
    unpack(buckets_[b], parameters, masters, gather(buckets_[b], pending.wait()), 0);
  }
}

/// In one message: each rank of a node averages its part with other nodes.
void Synchroniser::Impl::average_buffers(const std::vector<at::Tensor>& buffers) const {
  int64_t numel = 0;
  for (const at::Tensor& buffer : buffers) {
    numel += buffer.numel();
  }
  if (numel == 0 || nodes.count() == 1) {
    return;
  }
  const int64_t part = (numel + nodes.intra_node().size() - 1) / nodes.intra_node().size();
  const at::Tensor flat =
      at::zeros({part * nodes.intra_node().size()}, buffers[0].options().dtype(at::kFloat));
  const auto for_each_place = [&](auto&& function) {
    int64_t offset = 0;
    for (const at::Tensor& buffer : buffers) {
      function(buffer, flat.narrow(0, offset, buffer.numel()).view(buffer.sizes()));
      offset += buffer.numel();
    }
  };
  for_each_place([](const at::Tensor& buffer, const at::Tensor& place) { place.copy_(buffer); });
  const at::Tensor own = flat.narrow(0, part * nodes.intra_node().rank(), part);
  comm::all_reduce(nodes.inter_node(), own, comm::ReduceOp::kAvg, "buffers").wait();
  comm::all_gather(nodes.intra_node(), flat, own, "buffers").wait();
  for_each_place([](const at::Tensor& buffer, const at::Tensor& place) { buffer.copy_(place); });
}

Synchroniser::Synchroniser(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Synchroniser::Synchroniser(Nodes nodes, const std::vector<shard::Parameter>& parameters,
                           const OuterOptions& options)
    : Synchroniser(std::make_unique<Impl>(std::move(nodes), options, /*is_partitioned=*/false)) {
  impl_->add(parameters);
}
Synchroniser::~Synchroniser() = default;

std::unique_ptr<Synchroniser> Synchroniser::of_slices(Nodes nodes,
                                                      const std::vector<NodeSlice>& slices,
                                                      const OuterOptions& options) {
  std::unique_ptr<Synchroniser> result(
      new Synchroniser(std::make_unique<Impl>(std::move(nodes), options, /*is_partitioned=*/true)));
  result->impl_->add(slices);
  return result;
}

StepResult Synchroniser::step(const StepInput& input) { return impl_->step(input); }
bool Synchroniser::is_due() const { return impl_->is_due(); }
void Synchroniser::average(const std::vector<at::Tensor>& masters) { impl_->average(masters); }
void Synchroniser::add(const std::vector<shard::Parameter>& more) { impl_->add(more); }
void Synchroniser::add_slices(const std::vector<NodeSlice>& slices) { impl_->add(slices); }
const Parameters& Synchroniser::parameters() const { return impl_->parameters; }
bool Synchroniser::is_trained(size_t parameter) const { return impl_->is_trained(parameter); }
const Nodes& Synchroniser::nodes() const { return impl_->nodes; }
const OuterOptions& Synchroniser::options() const { return impl_->options; }
int Synchroniser::fragment_of(size_t parameter) const {
  return static_cast<int>(impl_->parameters.at(parameter).group);
}
bool Synchroniser::uses_learning_rates() const { return impl_->optimizer_->uses_learning_rates(); }
int64_t Synchroniser::calls() const { return impl_->report.calls; }
double Synchroniser::push_sum_weight() const {
  return impl_->gossip ? impl_->gossip->weight() : 1.0;
}
double Synchroniser::arriving_push_sum_weight() const {
  return impl_->gossip ? impl_->gossip->arriving_weight() : 0.0;
}
OuterReport Synchroniser::report() const {
  OuterReport report = impl_->report;
  report.intra_node_bytes = impl_->nodes.intra_node().traffic().sent_bytes;
  report.inter_node_bytes = impl_->nodes.inter_node().traffic().sent_bytes;
  return report;
}
OuterState Synchroniser::state() const { return impl_->state(); }
void Synchroniser::load_state(const OuterState& state) { impl_->load_state(state); }
std::vector<OuterRange> Synchroniser::ranges() const { return impl_->ranges(); }
std::map<std::string, double> Synchroniser::scalars() const { return impl_->scalars(); }
std::vector<OuterRange> Synchroniser::wanted_ranges() { return impl_->wanted_ranges(); }
void Synchroniser::take_range(const OuterRange& range) { impl_->take_range(range); }
void Synchroniser::finish_loading(const std::map<std::string, double>& scalars) {
  impl_->finish_loading(scalars);
}

}  // namespace fairshard::outer
