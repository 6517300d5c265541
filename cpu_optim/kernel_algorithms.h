// Internal: the optimizers' arithmetic, one element at a time, in fp32. What is fused is written as
// fma. Moments move by c * (new - old), not beta * old + c * new: a rounded beta and a rounded 1 -
// beta do not add to 1. Decoupled decay is counted in steps, w -= step * (direction + decay * w),
// so that w itself is rounded once.
#pragma once

#include "cpu_optim/kernel_table.h"

namespace zinf::optim {

// A second moment never becomes infinite: it stops at the largest bf16 number.
constexpr float kLargest = 3.3895313892515355e38f;

// PyTorch's Adam (L2) and AdamW (decoupled): eps outside the root. With b = sqrt(bias correction
// 2), what is divided by sqrt(v) / b + eps is here multiplied by b and divided by sqrt(v) + b eps:
// one rounding less.
template <class V>
struct Adam {
  using F = typename V::F;
  static constexpr bool kFirst = true, kSecond = true;
  F l2, decay, first, second, eps, step_size;
  explicit Adam(const Coefficients& c)
      : l2(V::set(c.l2)),
        decay(V::set(c.decay)),
        first(V::set(c.first)),
        second(V::set(c.second)),
        eps(V::set(c.eps)),
        step_size(V::set(c.step_size)) {}
  void step(F& w, F& m, F& v, F g) const {
    g = V::fma(l2, w, g);
    m = V::fma(first, V::sub(g, m), m);
    v = V::min(V::fma(second, V::fms(g, g, v), v), V::set(kLargest));
    const F root = V::add(V::sqrt(v), eps);
    const F direction = V::div(m, root);
    w = V::fnma(step_size, V::fma(decay, w, direction), w);
  }
};

// Lion (Chen et al. 2023, algorithm 2): the sign of an interpolation, decoupled decay.
template <class V>
struct Lion {
  using F = typename V::F;
  static constexpr bool kFirst = true, kSecond = false;
  F decay, first, second, step_size;
  explicit Lion(const Coefficients& c)
      : decay(V::set(c.decay)),
        first(V::set(c.first)),
        second(V::set(c.second)),
        step_size(V::set(c.step_size)) {}
  void step(F& w, F& m, F&, F g) const {
    const F change = V::sub(g, m);
    const F direction = V::sign(V::fma(first, change, m));
    w = V::fnma(step_size, V::fma(decay, w, direction), w);
    m = V::fma(second, change, m);
  }
};

// PyTorch's Adagrad.
template <class V>
struct Adagrad {
  using F = typename V::F;
  static constexpr bool kFirst = false, kSecond = true;
  F l2, initial, eps, step_size;
  explicit Adagrad(const Coefficients& c)
      : l2(V::set(c.l2)),
        initial(V::set(c.initial)),
        eps(V::set(c.eps)),
        step_size(V::set(c.step_size)) {}
  void step(F& w, F&, F& sum, F g) const {
    g = V::fma(l2, w, g);
    sum = V::min(V::fma(g, g, sum), V::set(kLargest));
    const F root = V::add(V::sqrt(V::add(sum, initial)), eps);
    w = V::fnma(step_size, V::div(g, root), w);
  }
};

// PyTorch's SGD without momentum.
template <class V>
struct Sgd {
  using F = typename V::F;
  static constexpr bool kFirst = false, kSecond = false;
  F l2, step_size;
  explicit Sgd(const Coefficients& c) : l2(V::set(c.l2)), step_size(V::set(c.step_size)) {}
  void step(F& w, F&, F&, F g) const { w = V::fnma(step_size, V::fma(l2, w, g), w); }
};

// PyTorch's SGD with momentum, dampening and Nesterov's variant.
template <class V>
struct SgdMomentum {
  using F = typename V::F;
  static constexpr bool kFirst = true, kSecond = false;
  F l2, momentum, undamped, of_buffer, of_gradient, step_size;
  explicit SgdMomentum(const Coefficients& c)
      : l2(V::set(c.l2)),
        momentum(V::set(c.momentum)),
        undamped(V::set(c.undamped)),
        of_buffer(V::set(c.of_buffer)),
        of_gradient(V::set(c.of_gradient)),
        step_size(V::set(c.step_size)) {}
  void step(F& w, F& m, F&, F g) const {
    g = V::fma(l2, w, g);
    m = V::fma(momentum, m, V::mul(undamped, g));
    w = V::fnma(step_size, V::fma(of_buffer, m, V::mul(of_gradient, g)), w);
  }
};

}  // namespace zinf::optim
