// The optimizers in fp64, one element, with the last place of the largest intermediate value on the
// way to each result: what a correct fp32 kernel may be off by is measured in it.
#pragma once

#include <algorithm>
#include <cmath>

#include "cpu_optim/optimizer.h"

namespace zinf::optim {

struct Reference {
  double weight = 0, first = 0, second = 0;
  double weight_ulp = 0, first_ulp = 0, second_ulp = 0;
};

// The distance of two neighbouring fp32 numbers at |x|.
inline double ulp(double x) {
  const float size = static_cast<float>(std::fabs(x));
  return static_cast<double>(std::nextafter(size, INFINITY)) - static_cast<double>(size);
}

inline double largest(std::initializer_list<double> values) {
  double most = 0;
  for (const double value : values) most = std::max(most, std::fabs(value));
  return most;
}

// A scalar of the step as every fp32 optimizer takes it.
inline double single(double x) { return static_cast<double>(static_cast<float>(x)); }

inline Reference reference_step(Algorithm algorithm, const Hyper& h, const Group& group,
                                const StepScalars& s, double w, double m, double v,
                                double raw_gradient) {
  const double lr = s.lr * group.lr_factor;
  const double scaled = single(raw_gradient * s.gradient_factor);
  const bool decoupled = algorithm == Algorithm::kAdamW || algorithm == Algorithm::kLion;
  const double l2 = decoupled ? 0.0 : single(group.weight_decay);
  const double g = scaled + l2 * w;
  const double g_size = largest({scaled, l2 * w, g});
  const double kept = decoupled ? w - lr * group.weight_decay * w : w;
  const double c1 = single(1 - h.beta1), c2 = single(1 - h.beta2);
  const auto step = static_cast<double>(s.step);
  Reference r;
  double quotient = 0, rate = 0, first_size = 0,
         second_size = 0;  // the weight moves by rate * quotient
  switch (algorithm) {
    case Algorithm::kAdamW:
    case Algorithm::kAdam: {
      const double root = std::sqrt(1 - std::pow(h.beta2, step));
      rate = single(lr * root / (1 - std::pow(h.beta1, step)));
      r.first = m + c1 * (g - m);
      r.second = v + c2 * (g * g - v);
      first_size = largest({m, c1 * g_size});
      second_size = largest({v, c2 * g_size * g_size});
      const double denominator = std::sqrt(r.second) + single(h.eps * root);
      r.weight = kept - rate * r.first / denominator;
      quotient = first_size / denominator;
      break;
    }
    case Algorithm::kLion: {
      const double direction = m + c1 * (g - m);
      r.weight = kept - single(lr) * ((direction > 0) - (direction < 0));
      rate = lr;
      quotient = 1;
      r.first = m + c2 * (g - m);
      first_size = largest({m, c2 * g});
      break;
    }
    case Algorithm::kAdagrad: {
      r.second = v + g * g;
      second_size = r.second;
      rate = single(lr / (1 + (step - 1) * h.lr_decay));
      const double denominator =
          std::sqrt(r.second + single(h.initial_accumulator)) + single(h.eps);
      r.weight = w - rate * g / denominator;
      quotient = g_size / denominator;
      break;
    }
    case Algorithm::kSgd: {
      const double momentum = single(h.momentum);
      r.first = momentum * m + single(s.step == 1 ? 1 : 1 - h.dampening) * g;
      first_size = largest({momentum * m, g_size});
      const double direction = momentum == 0 ? g : h.nesterov ? g + momentum * r.first : r.first;
      r.weight = w - single(lr) * direction;
      rate = lr;
      quotient = largest({first_size, g_size, direction});
      break;
    }
  }
  r.weight_ulp = std::max(ulp(largest({w, r.weight})), rate * ulp(quotient));
  r.first_ulp = ulp(largest({first_size, r.first}));
  r.second_ulp = ulp(largest({second_size, r.second}));
  return r;
}
}  // namespace zinf::optim
