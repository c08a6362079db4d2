#pragma once
// Parameters with known values, and gradients of them as a reducer would leave them.

#include <fairshard/shard/flat_group.h>

#include <memory>
#include <vector>

namespace fairshard::test {

/// Of these sizes, named p0, p1, ...; element j of parameter i is i + j / 100.
std::vector<shard::Parameter> make_parameters(const std::vector<int64_t>& sizes,
                                              at::ScalarType dtype = at::kFloat);

/// What make_parameters() gives parameter i.
at::Tensor initial_values(size_t i, int64_t size);

/// Every parameter in a bucket of its own: number 0 has the last one.
shard::FlatOptions one_bucket_each();

/// Makes `gradients`, one for each parameter, the reduced ones of a backward. An undefined tensor
/// is that of a parameter without a gradient.
void set_reduced(shard::FlatGroup& group, const std::vector<at::Tensor>& gradients);

/// The part of a parameter-like tensor that a slice has.
at::Tensor part_of(const at::Tensor& whole, const shard::Slice& slice);

}  // namespace fairshard::test
