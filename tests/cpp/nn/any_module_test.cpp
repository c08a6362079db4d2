// A model, *model and a shared_ptr do the same wherever a module is taken; anything else is refused
// by one line of the compiler.
#include "support/expect_error.h"
#include "support/temporary_directory.h"
#include <fairshard/checkpoint.h>
#include <fairshard/comm.h>
#include <fairshard/module/any_module.h>
#include <fairshard/nn/offload_model.h>
#include <fairshard/nn/slowmo.h>
#include <fairshard/optim/fused.h>
#include <fairshard/optim/oss.h>

#include <gtest/gtest.h>
#include <torch/nn.h>
#include <torch/optim.h>

#include <map>

namespace fairshard {
namespace {

using comm::Group;
using comm::launch_threads;
using test::expect_error;
using test::TemporaryDirectory;
using torch::nn::Linear;
using torch::nn::LinearImpl;
using torch::nn::Sequential;
using torch::nn::SequentialImpl;

static_assert(AnyModule<Sequential> && AnyModule<SequentialImpl> && AnyModule<const Sequential&>);
static_assert(AnyModule<std::shared_ptr<LinearImpl>> && !AnyModule<at::Tensor> && !AnyModule<int>);
static_assert(AnyModuleOf<Sequential, SequentialImpl> && !AnyModuleOf<Linear, SequentialImpl>);

static_assert(Checkpointable<Sequential&> && Checkpointable<torch::optim::SGD&>);
static_assert(Checkpointable<int*> && Checkpointable<std::vector<double>*>);
static_assert(!Checkpointable<int&> && !Checkpointable<const int*> && !Checkpointable<char*>);
static_assert(!(Checkpointable<std::map<int, int>*>));

Sequential make_model() {
  torch::manual_seed(1);
  return Sequential(Linear(3, 4), Linear(4, 2));
}

TEST(AnyModule, IsTheSameHoweverItIsHeld) {
  Sequential model = make_model();
  EXPECT_EQ(shared_module(model), model.ptr());
  EXPECT_EQ(shared_module(*model), model.ptr());
  EXPECT_EQ(shared_module(model.ptr()), model.ptr());
  LinearImpl on_the_stack(2, 2);
  expect_error([&] { shared_module(on_the_stack); }, {"LinearImpl", "no shared_ptr"});
  expect_error([&] { shared_module(Linear(nullptr)); }, {"empty"});
  expect_error([&] { shared_module(std::shared_ptr<LinearImpl>()); }, {"null"});
}

TEST(AnyModule, IsWhatAnOffloadModelTakes) {
  Sequential model = make_model();
  const at::Tensor x = at::ones({2, 3});
  const at::Tensor expected = model->forward(x);
  EXPECT_TRUE(OffloadModel(make_model()).forward(x).equal(expected));
  EXPECT_TRUE(OffloadModel(*make_model()).forward(x).equal(expected));
  EXPECT_TRUE(OffloadModel(make_model().ptr(), OffloadOptions()).forward(x).equal(expected));
}

TEST(AnyModule, IsWhatSlowMoTakes) {
  launch_threads(1, [](Group group) {
    const at::Tensor x = at::ones({2, 3});
    Sequential model = make_model();
    const at::Tensor expected = model->forward(x);
    const auto options =
        SlowMoOptions().outer(outer::OuterOptions().optimizer(outer::OuterOptimizerKind::kAverage));
    SlowMoDistributedDataParallel by_holder(group, model, 1, options);
    SlowMoDistributedDataParallel by_reference(group, *model, 1, options);
    SlowMoDistributedDataParallel by_pointer(group, model.ptr(), 1, options);
    SlowMoDistributedDataParallel<Sequential> named(group, *model, 1, options);
    EXPECT_TRUE(by_holder.forward(x).equal(expected));
    EXPECT_TRUE(by_reference.forward(x).equal(expected));
    EXPECT_TRUE(by_pointer.forward(x).equal(expected));
    EXPECT_TRUE(named(x).equal(expected));
    EXPECT_EQ(named.module().ptr(), model.ptr());
    EXPECT_EQ(by_reference->size(), 2u);
    OSS<SGD> oss(group, *model, torch::optim::SGDOptions(0.1));
    expect_error([&] { named.perform_slowmo(oss); }, {"is an OSS", "Make it before"});
  });
}

TEST(AnyModule, IsWhatACheckpointTakes) {
  const TemporaryDirectory directory;
  Sequential model = make_model();
  Checkpoint(directory.path()).add("model", model).save(1);
  const auto load = [&](auto&& add) {
    Sequential other(Linear(3, 4), Linear(4, 2));
    Checkpoint checkpoint(directory.path());
    add(checkpoint, other);
    checkpoint.load();
    return other->forward(at::ones({2, 3})).equal(model->forward(at::ones({2, 3})));
  };
  EXPECT_TRUE(load([](Checkpoint& to, Sequential& other) { to.add("model", other); }));
  EXPECT_TRUE(load([](Checkpoint& to, Sequential& other) { to.add("model", *other); }));
  EXPECT_TRUE(load([](Checkpoint& to, Sequential& other) { to.add("model", other.ptr()); }));
}

}  // namespace
}  // namespace fairshard
