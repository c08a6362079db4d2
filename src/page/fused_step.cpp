#include "fused_step.h"

#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_sgd.h>
#include <c10/util/BFloat16.h>
#include <torch/csrc/autograd/variable.h>

#include <bit>
#include <cmath>

namespace fairshard::page {
namespace {

/// All numbers of a step, as a loop wants them.
struct Coefficients {
  float decay;  // what is left of the weight by decoupled weight decay
  float l2;     // the weight's share in the gradient
  float sign;
  float beta1;
  float beta2;
  float step_size;
  float root_correction;
  float eps;
  float momentum;
  float dampening;
  float lr;
  bool nesterov;
};

struct Pointers {
  float* weight;
  uint16_t* image;
  const void* gradient;
  float* average;
  float* square_average;
};

inline float widen(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}
inline float widen(float value) { return value; }

/// To nearest, ties to even. Not-a-numbers stay such.
inline uint16_t narrow(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t rounded = (bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16;
  return static_cast<uint16_t>(value != value ? 0x7fc0U : rounded);
}

template <typename Gradient>
[[gnu::always_inline]] inline void adam_loop(const Pointers& at, const Coefficients& c,
                                             int64_t begin, int64_t end) {
  float* __restrict weight = at.weight;
  uint16_t* __restrict image = at.image;
  const Gradient* __restrict gradient = static_cast<const Gradient*>(at.gradient);
  float* __restrict average = at.average;
  float* __restrict square_average = at.square_average;
  for (int64_t i = begin; i < end; ++i) {
    const float old = weight[i] * c.decay;
    const float g = c.sign * widen(gradient[i]) + c.l2 * old;
    const float mean = average[i] + (1 - c.beta1) * (g - average[i]);
    const float square = c.beta2 * square_average[i] + (1 - c.beta2) * g * g;
    const float value = old - c.step_size * mean / (std::sqrt(square) / c.root_correction + c.eps);
    average[i] = mean;
    square_average[i] = square;
    weight[i] = value;
    image[i] = narrow(value);
  }
}

template <typename Gradient, bool kHasMomentum>
[[gnu::always_inline]] inline void sgd_loop(const Pointers& at, const Coefficients& c,
                                            int64_t begin, int64_t end) {
  float* __restrict weight = at.weight;
  uint16_t* __restrict image = at.image;
  const Gradient* __restrict gradient = static_cast<const Gradient*>(at.gradient);
  float* __restrict average = at.average;
  for (int64_t i = begin; i < end; ++i) {
    float g = c.sign * widen(gradient[i]) + c.l2 * weight[i];
    if constexpr (kHasMomentum) {
      average[i] = c.momentum * average[i] + c.dampening * g;
      g = c.nesterov ? g + c.momentum * average[i] : average[i];
    }
    weight[i] -= c.lr * g;
    image[i] = narrow(weight[i]);
  }
}

enum class Loop { kAdam, kSgd, kMomentum };

template <typename Gradient>
[[gnu::always_inline]] inline void any_loop(Loop loop, const Pointers& at, const Coefficients& c,
                                            int64_t begin, int64_t end) {
  if (loop == Loop::kAdam) {
    adam_loop<Gradient>(at, c, begin, end);
  } else if (loop == Loop::kSgd) {
    sgd_loop<Gradient, false>(at, c, begin, end);
  } else {
    sgd_loop<Gradient, true>(at, c, begin, end);
  }
}

// The same loop for three kinds of processors. What the compiler makes of the plain one uses a
// quarter of the width of today's.
using LoopFunction = void (*)(Loop, bool, const Pointers&, const Coefficients&, int64_t, int64_t);

void plain_loop(Loop loop, bool is_narrow, const Pointers& at, const Coefficients& c, int64_t begin,
                int64_t end) {
  is_narrow ? any_loop<uint16_t>(loop, at, c, begin, end)
            : any_loop<float>(loop, at, c, begin, end);
}

#if defined(__x86_64__)
[[gnu::target("avx2,fma")]] void avx2_loop(Loop loop, bool is_narrow, const Pointers& at,
                                           const Coefficients& c, int64_t begin, int64_t end) {
  is_narrow ? any_loop<uint16_t>(loop, at, c, begin, end)
            : any_loop<float>(loop, at, c, begin, end);
}

[[gnu::target("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,prefer-vector-width=512")]] void
avx512_loop(Loop loop, bool is_narrow, const Pointers& at, const Coefficients& c, int64_t begin,
            int64_t end) {
  is_narrow ? any_loop<uint16_t>(loop, at, c, begin, end)
            : any_loop<float>(loop, at, c, begin, end);
}

LoopFunction best_loop() {
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")) {
    return avx512_loop;
  }
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? avx2_loop : plain_loop;
}
#else
LoopFunction best_loop() { return plain_loop; }
#endif

Coefficients coefficients_of(const StepTarget& target) {
  const StepOptions& o = target.options;
  const bool is_sgd = o.rule() == StepRule::kSgd;
  const double step = is_sgd ? 1 : *target.state.step.const_data_ptr<float>();
  Coefficients c{};
  c.decay = o.rule() == StepRule::kAdamW ? static_cast<float>(1 - o.lr() * o.weight_decay()) : 1;
  c.l2 = o.rule() == StepRule::kAdamW ? 0 : static_cast<float>(o.weight_decay());
  c.sign = o.maximize() ? -1 : 1;
  c.beta1 = static_cast<float>(o.beta1());
  c.beta2 = static_cast<float>(o.beta2());
  c.step_size = static_cast<float>(o.lr() / (1 - std::pow(o.beta1(), step)));
  c.root_correction = static_cast<float>(std::sqrt(1 - std::pow(o.beta2(), step)));
  c.eps = static_cast<float>(o.eps());
  c.momentum = static_cast<float>(o.momentum());
  c.dampening = target.state.is_first ? 1 : static_cast<float>(1 - o.dampening());
  c.lr = static_cast<float>(o.lr());
  c.nesterov = o.nesterov();
  return c;
}

bool lies_like(const at::Tensor& tensor, const at::Tensor& other) {
  return !tensor.defined() || (tensor.strides() == other.strides());
}

template <typename T>
T* data_of(const at::Tensor& tensor) {
  return tensor.defined() ? static_cast<T*>(tensor.mutable_data_ptr()) : nullptr;
}

}  // namespace

bool is_for_ranges(const StepTarget& target) {
  const auto& [parameter, image, gradient, options, state] = target;
  const bool has_dtypes =
      parameter.scalar_type() == at::kFloat && image.defined() &&
      image.scalar_type() == at::kBFloat16 &&
      (gradient.scalar_type() == at::kBFloat16 || gradient.scalar_type() == at::kFloat);
  return has_dtypes && !options.amsgrad() && parameter.is_non_overlapping_and_dense() &&
         lies_like(image, parameter) && lies_like(gradient, parameter) &&
         lies_like(state.average, parameter) && lies_like(state.square_average, parameter);
}

void count_step(const StepTarget& target) {
  if (target.state.step.defined()) {
    *target.state.step.mutable_data_ptr<float>() += 1;
  }
  torch::autograd::impl::bump_version(target.parameter);
}

void step_range(const StepTarget& target, int64_t begin, int64_t end) {
  static const LoopFunction loop = best_loop();
  const bool is_sgd = target.options.rule() == StepRule::kSgd;
  const Loop kind = !is_sgd                         ? Loop::kAdam
                    : target.options.momentum() > 0 ? Loop::kMomentum
                                                    : Loop::kSgd;
  const Pointers at{data_of<float>(target.parameter), data_of<uint16_t>(target.image),
                    target.gradient.const_data_ptr(), data_of<float>(target.state.average),
                    data_of<float>(target.state.square_average)};
  loop(kind, target.gradient.scalar_type() == at::kBFloat16, at, coefficients_of(target), begin,
       end);
}

void step_whole(const StepTarget& target) {
  const StepOptions& o = target.options;
  const at::Tensor gradient = target.gradient.to(target.parameter.scalar_type());
  const auto list = [](const at::Tensor& tensor) {
    return tensor.defined() ? std::vector<at::Tensor>{tensor} : std::vector<at::Tensor>{};
  };
  if (o.rule() == StepRule::kSgd) {
    at::_fused_sgd_(list(target.parameter), list(gradient),
                    o.momentum() != 0 ? list(target.state.average) : std::vector<at::Tensor>{},
                    o.weight_decay(), o.momentum(), o.lr(), o.dampening(), o.nesterov(),
                    o.maximize(), target.state.is_first);
  } else {
    *target.state.step.mutable_data_ptr<float>() += 1;
    const auto step = [&](auto kernel) {
      kernel(list(target.parameter), list(gradient), list(target.state.average),
             list(target.state.square_average), list(target.state.largest_square_average),
             list(target.state.step), o.lr(), o.beta1(), o.beta2(), o.weight_decay(), o.eps(),
             o.amsgrad(), o.maximize());
    };
    o.rule() == StepRule::kAdamW ? step([](auto&&... each) { at::_fused_adamw_(each...); })
                                 : step([](auto&&... each) { at::_fused_adam_(each...); });
  }
  if (target.image.defined()) {
    at::Tensor(target.image).copy_(target.parameter);
  }
}

}  // namespace fairshard::page
