#include "push_sum.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>

#include <utility>

namespace fairshard::outer {
namespace {

/// Uniform mixing: a node and the one that it sends to get the same.
constexpr double kShare = 0.5;

std::vector<int> distances_in(GossipGraph graph, int nodes) {
  std::vector<int> result{1 % nodes};
  for (int distance = 2; graph == GossipGraph::kExponential && distance < nodes; distance *= 2) {
    result.push_back(distance);
  }
  return result;
}

}  // namespace

PushSum::PushSum(comm::Group inter_node, GossipGraph graph, bool is_overlapped)
    : inter_node_(std::move(inter_node)),
      distances_(distances_in(graph, inter_node_.size())),
      is_overlapped_(is_overlapped) {}

void PushSum::mix(const std::vector<at::Tensor>& values) {
  add_excess(values);
  std::vector<at::Tensor> halves;
  halves.reserve(values.size());
  for (const at::Tensor& value : values) {
    halves.push_back(value.mul_(kShare).clone());
  }
  weight_ *= kShare;
  if (is_overlapped_) {
    const double sent = weight_;
    receive(values);
    outgoing_weight_ = at::full({1}, sent, at::kDouble);
    send(halves);
  } else {
    outgoing_weight_ = at::full({1}, weight_, at::kDouble);
    send(halves);
    receive(values);
  }
  ++mixes;
  if (weight_ != 1) {
    for (const at::Tensor& value : values) {
      excess_.push_back(value.clone());
      value.div_(weight_);
      excess_.back().sub_(value);
    }
  }
}

void PushSum::flush(const std::vector<at::Tensor>& values) {
  add_excess(values);
  receive(values);
  weight_ = 1;
}

void PushSum::replace(const std::vector<at::Tensor>& values) {
  excess_.clear();
  if (weight_ != 1) {
    for (const at::Tensor& value : values) {
      excess_.push_back(value.mul(weight_).sub_(value));
    }
  }
}

void PushSum::add_excess(const std::vector<at::Tensor>& values) {
  for (size_t i = 0; i < excess_.size(); ++i) {
    values[i].add_(excess_[i]);
  }
  excess_.clear();
}

void PushSum::send(const std::vector<at::Tensor>& halves) {
  const int distance = distances_[static_cast<size_t>(mixes) % distances_.size()];
  outgoing_ = halves;
  incoming_.clear();
  for (const at::Tensor& half : halves) {
    incoming_.push_back(at::empty_like(half));
    works_.push_back(comm::shift(inter_node_, incoming_.back(), half, distance, "gossip"));
  }
  incoming_weight_ = at::empty_like(outgoing_weight_);
  works_.push_back(
      comm::shift(inter_node_, incoming_weight_, outgoing_weight_, distance, "weight of gossip"));
}

void PushSum::wait() {
  for (auto& work : works_) {
    work.wait();
  }
  works_.clear();
  outgoing_.clear();
}

void PushSum::receive(const std::vector<at::Tensor>& numerators) {
  if (!incoming_weight_.defined()) {
    return;
  }
  wait();
  for (size_t i = 0; i < incoming_.size(); ++i) {
    numerators[i].add_(incoming_[i]);
  }
  weight_ += incoming_weight_.item<double>();
  incoming_.clear();
  incoming_weight_.reset();
}

double PushSum::arriving_weight() {
  wait();
  return incoming_weight_.defined() ? incoming_weight_.item<double>() : 0.0;
}

const std::vector<at::Tensor>& PushSum::arrived() {
  wait();
  return incoming_;
}

void PushSum::load(double weight, std::vector<at::Tensor> excess, double arriving_weight,
                   std::vector<at::Tensor> incoming) {
  wait();
  weight_ = weight;
  excess_ = std::move(excess);
  incoming_ = std::move(incoming);
  incoming_weight_ = incoming_.empty() ? at::Tensor() : at::full({1}, arriving_weight, at::kDouble);
}

}  // namespace fairshard::outer
