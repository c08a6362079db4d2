#include <fairshard/comm/collectives.h>
#include <fairshard/shard/agree.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <cstring>
#include <sstream>

namespace fairshard::shard {
namespace {

std::string describe(const std::vector<Parameter>& parameters) {
  std::ostringstream text;
  for (const auto& parameter : parameters) {
    text << "'" << parameter.name << "' " << parameter.tensor.scalar_type()
         << parameter.tensor.sizes() << (parameter.tensor.requires_grad() ? "" : " (frozen)")
         << '\n';
  }
  return text.str();
}

/// Every rank's text, in rank order.
std::vector<std::string> gather_texts(const comm::Group& group, const std::string& text) {
  const int ranks = group.size();
  const at::Tensor lengths = at::empty({ranks}, at::kLong);
  const at::Tensor own_length = at::full({1}, static_cast<int64_t>(text.size()), at::kLong);
  comm::all_gather(group, lengths, own_length, "length of the parameter list").wait();

  const auto longest = std::max<int64_t>(lengths.max().item<int64_t>(), 1);
  const at::Tensor own = at::zeros({longest}, at::kByte);
  std::memcpy(own.mutable_data_ptr(), text.data(), text.size());
  const at::Tensor all = at::empty({ranks, longest}, at::kByte);
  comm::all_gather(group, all, own, "parameter list").wait();

  std::vector<std::string> texts(ranks);
  for (int rank = 0; rank < ranks; ++rank) {
    texts[rank].assign(static_cast<const char*>(all[rank].const_data_ptr()),
                       lengths[rank].item<int64_t>());
  }
  return texts;
}

std::string line_or_end(std::istream& text) {
  std::string line;
  return std::getline(text, line) ? line : "no more parameters";
}

}  // namespace

void check_same_parameters(const comm::Group& group, const std::vector<Parameter>& parameters,
                           const std::string& purpose) {
  const auto texts = gather_texts(group, purpose + '\n' + describe(parameters));
  for (int rank = 1; rank < group.size(); ++rank) {
    if (texts[rank] == texts[0]) {
      continue;
    }
    std::istringstream first(texts[0]);
    std::istringstream other(texts[rank]);
    const std::string our_purpose = line_or_end(first);
    const std::string their_purpose = line_or_end(other);
    TORCH_CHECK_VALUE(our_purpose == their_purpose, "the ranks' options differ: rank 0 has ",
                      our_purpose, ", rank ", rank, " has ", their_purpose);
    for (int position = 0;; ++position) {
      const std::string ours = line_or_end(first);
      const std::string theirs = line_or_end(other);
      TORCH_CHECK_VALUE(ours == theirs, "the ranks' models differ at parameter ", position,
                        ": rank 0 has ", ours, ", rank ", rank, " has ", theirs);
    }
  }
}

}  // namespace fairshard::shard
