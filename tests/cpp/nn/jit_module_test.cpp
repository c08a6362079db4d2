// TorchScript modules train as torch::nn modules do.
#include "support/expect_error.h"
#include "support/training.h"
#include <fairshard/nn/jit_module.h>
#include <fairshard/optim/fused.h>

#include <gtest/gtest.h>
#include <torch/script.h>

namespace fairshard {
namespace jit_module_test {

using comm::Group;
using comm::launch_threads;
using test::input;
using test::loss_of;

/// Not of the generator that ranks, as threads, share.
at::Tensor values(at::IntArrayRef sizes) {
  return at::arange(c10::multiply_integers(sizes), at::kFloat).sin().view(sizes).requires_grad_();
}

/// An affine layer in a layer, with a buffer, as torch.jit.script would make it.
torch::jit::Module make_script() {
  torch::jit::Module inner("inner");
  inner.register_parameter("weight", values({10, 5}), false);
  inner.register_buffer("offset", torch::ones({5}));
  inner.define(R"(
    def forward(self, x):
      return torch.tanh(torch.matmul(x, self.weight) + self.offset)
  )");
  torch::jit::Module outer("outer");
  outer.register_attribute("training", c10::BoolType::get(), true);
  outer.register_module("inner", inner);
  outer.register_parameter("bias", values({5}), false);
  outer.define(R"(
    def forward(self, x):
      return self.inner.forward(x) * (2.0 if self.training else 1.0) + self.bias
    def pair(self, x):
      return x, x + 1
  )");
  return outer;
}

TEST(JitModule, ItTrainsAsItsScriptDoesAlone) {
  launch_threads(2, [](Group group) {
    JitModule model(make_script());
    const auto names = model->named_parameters().keys();
    TORCH_CHECK((names == std::vector<std::string>{"bias", "inner.weight"}), names);
    TORCH_CHECK(model->named_buffers().contains("inner.offset"), "no buffer");
    OSS<AdamW> optimizer(group, model, torch::optim::AdamWOptions(0.1));
    ShardedDataParallel parallel(group, model, optimizer);
    torch::jit::Module plain = make_script();
    std::vector<at::Tensor> parameters;
    for (const auto& name : names) {
      parameters.push_back(name == "bias"
                               ? plain.attr("bias").toTensor()
                               : plain.attr("inner").toModule().attr("weight").toTensor());
    }
    AdamW own(parameters, torch::optim::AdamWOptions(0.1));
    for (int step = 0; step < 5; ++step) {
      optimizer.zero_grad();
      loss_of(parallel.forward(input(group.rank(), step))).backward();
      optimizer.step();
      own.zero_grad();
      loss_of(plain.forward({input(group.rank(), step)}).toTensor()).backward();
      for (const at::Tensor& parameter : parameters) {
        std::vector<at::Tensor> gradient{parameter.grad().div(group.size())};
        group.process_group()->allreduce(gradient)->wait();
        parameter.mutable_grad() = gradient[0];
      }
      own.step();
    }
    test::require_same(model->parameters(), parameters, true);
  });
}

TEST(JitModule, MethodsModesAndMovesAreTheScripts) {
  JitModule model(make_script());
  const at::Tensor x = input(0, 0);
  const at::Tensor training = model->forward(x);
  model->eval();
  EXPECT_FALSE(model->script().is_training());
  EXPECT_FALSE(model->forward(x).equal(training));
  EXPECT_TRUE(model->run({x}, "pair").isTuple());
  model->to(at::kDouble);
  EXPECT_EQ(model->forward(x.to(at::kDouble)).scalar_type(), at::kDouble);
  test::expect_error([&] { model->run({x}, "none"); }, {"no method 'none'"});
}

}  // namespace jit_module_test
}  // namespace fairshard
