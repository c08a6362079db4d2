#include "lender.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <utility>

namespace fairshard::comm {
namespace {

void check_tensor(const at::Tensor& tensor) {
  TORCH_CHECK_VALUE(tensor.defined(), "a tensor of a collective is undefined");
  TORCH_CHECK_TYPE(tensor.layout() == at::kStrided, "a tensor of a collective is ", tensor.layout(),
                   ", but must be dense");
}

bool is_lent_itself(const at::Tensor& tensor) { return tensor.is_cpu() && tensor.is_contiguous(); }

}  // namespace

at::Tensor Lender::source(const at::Tensor& tensor) {
  check_tensor(tensor);
  return tensor.variable_data().to(at::kCPU).contiguous().view(-1);
}

Lender::Tensors Lender::sources(const Tensors& tensors) {
  Tensors result;
  for (const at::Tensor& tensor : tensors) {
    result.push_back(source(tensor));
  }
  return result;
}

at::Tensor Lender::target(const at::Tensor& tensor) {
  check_tensor(tensor);
  return is_lent_itself(tensor)
             ? tensor.variable_data().view(-1)
             : copied(tensor, at::empty({tensor.numel()}, tensor.options().device(at::kCPU)));
}

Lender::Tensors Lender::targets(const Tensors& tensors) {
  Tensors result;
  for (const at::Tensor& tensor : tensors) {
    result.push_back(target(tensor));
  }
  return result;
}

at::Tensor Lender::both(const at::Tensor& tensor) {
  const at::Tensor values = source(tensor);
  return is_lent_itself(tensor) ? values : copied(tensor, values);
}

at::Tensor Lender::copied(const at::Tensor& tensor, at::Tensor host) {
  copies_.emplace_back(tensor.variable_data(), host);
  return host;
}

}  // namespace fairshard::comm
