// The dispatcher, told that AVX-512 is there: in this build its kernels are emulated.
#define __builtin_cpu_supports(feature) ((feature)[3] == '5' || __builtin_cpu_supports(feature))
#include "cpu_optim/dispatch.cc"
