// Which dtype an operation runs in, inside and outside of guards.
#include "support/expect_error.h"
#include <fairshard/amp/autocast.h>

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>

#include <thread>

namespace fairshard {
namespace autocast_test {

at::ScalarType product_dtype(at::Device device = at::kCPU) {
  const at::Tensor x = at::ones({4, 4}, device);
  return x.mm(x).scalar_type();
}

TEST(Autocast, ProductsAreLowAndSumsAreNot) {
  EXPECT_EQ(product_dtype(), at::kFloat);
  {
    const Autocast autocast(at::kCPU);
    EXPECT_EQ(product_dtype(), at::kBFloat16);
    const at::Tensor low = at::ones({4}, at::kBFloat16);
    EXPECT_EQ(at::mse_loss(low, low).scalar_type(), at::kFloat);
  }
  EXPECT_EQ(product_dtype(), at::kFloat);
}

TEST(Autocast, GuardsNestAndCanSwitchOff) {
  const Autocast outer(at::kCPU);
  {
    const Autocast half(at::kCPU, at::kHalf);
    EXPECT_EQ(product_dtype(), at::kHalf);
    {
      const Autocast off(at::kCPU, std::nullopt, false);
      EXPECT_EQ(product_dtype(), at::kFloat);
    }
    EXPECT_EQ(product_dtype(), at::kHalf);
  }
  EXPECT_EQ(product_dtype(), at::kBFloat16);
}

TEST(Autocast, AnExceptionEndsIt) {
  try {
    const Autocast autocast(at::kCPU);
    throw std::runtime_error("");
  } catch (const std::runtime_error&) {
  }
  EXPECT_EQ(product_dtype(), at::kFloat);
}

TEST(Autocast, ItIsForThisThread) {
  const Autocast autocast(at::kCPU);
  at::ScalarType elsewhere{};
  std::thread([&] { elsewhere = product_dtype(); }).join();
  EXPECT_EQ(elsewhere, at::kFloat);
}

TEST(Autocast, AChangedWeightIsCastAnewByTheNextOutermostGuard) {
  at::Tensor weight = at::ones({4, 4}).requires_grad_();
  const auto sum = [&] {
    const Autocast autocast(at::kCPU);
    return at::ones({4, 4}).mm(weight).sum().item<float>();
  };
  EXPECT_EQ(sum(), 64);
  {
    const at::NoGradGuard no_grad;
    weight.mul_(2);
  }
  EXPECT_EQ(sum(), 128);
}

TEST(Autocast, OnAGpuTheDefaultIsFloat16) {
  const at::Device device = at::hasCUDA() ? at::kCUDA : at::kCPU;
  const Autocast autocast(device.type());
  EXPECT_EQ(product_dtype(device), at::hasCUDA() ? at::kHalf : at::kBFloat16);
}

TEST(Autocast, BadArgumentsAreNamed) {
  test::expect_error([] { const Autocast autocast(at::kCPU, at::kDouble); }, {"dtype", "Double"});
  test::expect_error([] { const Autocast autocast(at::kMeta); }, {"device", "meta"});
}

}  // namespace autocast_test
}  // namespace fairshard
