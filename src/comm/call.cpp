#include "call.h"

#include <c10/core/ScalarType.h>
#include <c10/util/StringUtil.h>
#include <c10/util/hash.h>

#include <functional>

namespace fairshard::comm {
namespace {

constexpr size_t kLabelField = 7;

std::string op_name(c10d::ReduceOp::RedOpType op) {
  constexpr std::array kNames{"sum", "avg", "product", "min", "max", "band", "bor", "bxor"};
  const auto index = static_cast<size_t>(op);
  return index < kNames.size() ? kNames[index] : "unknown reduction";
}

/// Stands for the parts in a header; 0 for equal ones.
int64_t digest(const std::vector<int64_t>& parts) {
  int64_t result = 0;
  for (const int64_t part : parts) {
    result = static_cast<int64_t>(c10::hash_combine(result, static_cast<size_t>(part) + 1));
  }
  return result;
}

bool is_reduction(Kind kind) {
  return kind == Kind::kAllReduce || kind == Kind::kReduceScatter || kind == Kind::kReduce;
}

}  // namespace

const char* kind_name(Kind kind) {
  constexpr std::array kNames{"all_reduce", "broadcast", "all_gather", "reduce_scatter", "barrier",
                              "reduce",     "gather",    "scatter",    "all_to_all"};
  const auto index = static_cast<size_t>(kind);
  return index < kNames.size() ? kNames[index] : "unknown collective";
}

std::string Call::signature() const {
  std::string text = c10::str(kind_name(kind), " #", sequence);
  if (kind == Kind::kBarrier) {
    return text;
  }
  text += c10::str(" of ", c10::toString(dtype));
  if (kind != Kind::kAllToAll) {
    text += c10::str("[", numel, "]");
  }
  if (is_reduction(kind)) {
    text += c10::str(" (", op_name(op), ")");
  }
  if (root >= 0) {
    const bool is_source = kind == Kind::kBroadcast || kind == Kind::kScatter;
    text += c10::str(is_source ? " from" : " to", " rank ", root);
  }
  if (!parts.empty()) {
    text += " in unequal parts";
  }
  return text;
}

std::string Call::named() const {
  return c10::str(signature(), label.empty() ? "" : " '" + label + "'");
}

std::string Call::describe() const { return c10::str(named(), " on rank ", rank, " of ", size); }

Header to_header(const Call& call) {
  return {static_cast<int64_t>(call.sequence),
          static_cast<int64_t>(call.kind),
          static_cast<int64_t>(call.dtype),
          call.numel,
          static_cast<int64_t>(call.op),
          call.root,
          digest(call.parts),
          static_cast<int64_t>(std::hash<std::string>()(call.label))};
}

std::string describe_peer(const Header& header, const Call& mine) {
  Call call = mine;
  call.sequence = static_cast<uint64_t>(header[0]);
  call.kind = static_cast<Kind>(header[1]);
  call.dtype = static_cast<at::ScalarType>(header[2]);
  call.numel = header[3];
  call.op = static_cast<c10d::ReduceOp::RedOpType>(header[4]);
  call.root = static_cast<int>(header[5]);
  call.parts.assign(header[6] == 0 ? 0 : 1, 0);
  const bool has_other_label = header[kLabelField] != to_header(mine)[kLabelField];
  return c10::str(call.signature(), has_other_label ? " under another label" : "");
}

}  // namespace fairshard::comm
