#include "call.h"

#include <c10/core/ScalarType.h>
#include <c10/util/StringUtil.h>
#include <c10/util/hash.h>

#include <algorithm>

namespace fairshard::comm {
namespace {

std::string kind_name(Kind kind) {
  constexpr std::array kNames{"all_reduce",     "broadcast", "all_gather",
                              "reduce_scatter", "barrier",   "shift"};
  const auto index = static_cast<size_t>(kind);
  return index < kNames.size() ? kNames[index] : "unknown collective";
}

/// Stands for the bounds in a header; 0 for equal parts.
int64_t digest(const Bounds& bounds) {
  int64_t result = 0;
  for (const int64_t bound : bounds) {
    result = static_cast<int64_t>(c10::hash_combine(result, static_cast<size_t>(bound)));
  }
  return result;
}

std::string op_name(ReduceOp op) {
  constexpr std::array kNames{"sum", "avg", "min", "max"};
  const auto index = static_cast<size_t>(op);
  return index < kNames.size() ? kNames[index] : "unknown reduction";
}

}  // namespace

std::vector<at::Tensor> Call::split(const at::Tensor& whole) const {
  const at::Tensor flat = whole.view(-1);
  const int64_t length = (flat.numel() + size - 1) / size;
  const auto bound = [&](int i) {
    return bounds.empty() ? std::min(i * length, flat.numel()) : bounds[i];
  };
  std::vector<at::Tensor> parts;
  parts.reserve(size);
  for (int i = 0; i < size; ++i) {
    parts.push_back(flat.slice(0, bound(i), bound(i + 1)));
  }
  return parts;
}

std::string Call::signature() const {
  std::string text = c10::str(kind_name(kind), " #", sequence);
  if (kind == Kind::kBarrier) {
    return text;
  }
  text += c10::str(" of ", c10::toString(dtype), "[", numel, "]");
  if (kind == Kind::kBroadcast) {
    text += c10::str(" from rank ", root);
  } else if (kind == Kind::kShift) {
    text += c10::str(" by ", root);
  } else if (kind == Kind::kAllGather) {
    text += root < 0 ? "" : c10::str(", number ", root);
  } else {
    text += c10::str(" (", op_name(op), ")");
  }
  if (!bounds.empty()) {
    text += " in unequal parts";
  }
  return text;
}

std::string Call::describe() const {
  return c10::str(signature(), label.empty() ? "" : " '" + label + "'", " on rank ", rank, " of ",
                  size);
}

Header to_header(const Call& call) {
  return {static_cast<int64_t>(call.sequence),
          static_cast<int64_t>(call.kind),
          static_cast<int64_t>(call.dtype),
          call.numel,
          static_cast<int64_t>(call.op),
          call.root,
          digest(call.bounds)};
}

Call from_header(const Header& header, const Call& mine, int rank) {
  Call call = mine;
  call.sequence = static_cast<uint64_t>(header[0]);
  call.kind = static_cast<Kind>(header[1]);
  call.dtype = static_cast<at::ScalarType>(header[2]);
  call.numel = header[3];
  call.op = static_cast<ReduceOp>(header[4]);
  call.root = static_cast<int>(header[5]);
  // Whether a peer's parts are equal ones is all that its header tells.
  call.bounds.assign(header[6] == 0 ? 0 : 1, 0);
  call.rank = rank;
  call.label.clear();
  return call;
}

}  // namespace fairshard::comm
