#include "engine/config/batch.h"

#include "engine/base/error.h"
#include "engine/base/str.h"

namespace zinf::config {

namespace {

using Number = std::optional<std::int64_t>;

std::string line(const char* name, const Number& value, const std::string& origin) {
  return str("\n  ", name, " = ", value ? std::to_string(*value) : "auto", " (", origin, ")");
}

[[noreturn]] void refuse(const RunConfig& config, std::int64_t world, const std::string& why) {
  const BatchConfig& asked = config.batch;
  throw Error(
      ErrorKind::kUsage,
      str("batch sizes do not agree: ", why,
          line("train_batch_size", asked.total, config.origin("train_batch_size")),
          line("train_micro_batch_size_per_gpu", asked.micro,
               config.origin("train_micro_batch_size_per_gpu")),
          line("gradient_accumulation_steps", asked.accumulation,
               config.origin("gradient_accumulation_steps")),
          line("ranks", world, "launcher")),
      "train_batch_size = train_micro_batch_size_per_gpu x gradient_accumulation_steps x ranks; "
      "give two of the three, or change the number of ranks");
}

// a x b, refused beyond what a batch can be.
std::int64_t times(const RunConfig& config, std::int64_t world, std::int64_t a, std::int64_t b) {
  std::int64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product) || product > (std::int64_t{1} << 40))
    refuse(config, world, str(a, " x ", b, " is more than 2^40 samples"));
  return product;
}

}  // namespace

Batch resolve_batch(const RunConfig& config, std::int64_t world) {
  ZINF_CHECK(world >= 1, str("world ", world));
  const BatchConfig& asked = config.batch;
  Batch batch;
  batch.world = world;
  batch.micro = asked.micro;
  batch.accumulation = asked.accumulation;
  if (!asked.total) {
    if (!batch.accumulation) batch.accumulation = 1;
    if (!batch.micro) return batch;
    batch.per_rank = times(config, world, *batch.micro, *batch.accumulation);
    batch.total = times(config, world, *batch.per_rank, world);
    return batch;
  }
  batch.total = asked.total;
  if (*asked.total % world != 0)
    refuse(config, world, str(*asked.total, " is not a multiple of ", world, " ranks"));
  batch.per_rank = *asked.total / world;
  if (batch.micro && batch.accumulation) {
    const std::int64_t product =
        times(config, world, times(config, world, *batch.micro, *batch.accumulation), world);
    if (product != *asked.total)
      refuse(config, world,
             str(*batch.micro, " x ", *batch.accumulation, " x ", world, " = ", product, ", not ",
                 *asked.total));
    return batch;
  }
  const Number& known = batch.micro ? batch.micro : batch.accumulation;
  if (!known) return batch;
  if (*batch.per_rank % *known != 0)
    refuse(config, world,
           str(*asked.total, " / ", world, " ranks = ", *batch.per_rank, ", not a multiple of ",
               *known));
  (batch.micro ? batch.accumulation : batch.micro) = *batch.per_rank / *known;
  return batch;
}

Batch with_micro(const Batch& batch, std::int64_t micro) {
  ZINF_CHECK(micro >= 1 && batch.allows(micro), str("micro-batch ", micro));
  ZINF_CHECK(batch.per_rank || batch.accumulation, "a batch without per_rank and accumulation");
  Batch out = batch;
  out.micro = micro;
  if (!out.per_rank) out.per_rank = micro * *out.accumulation;
  out.accumulation = *out.per_rank / micro;
  out.total = *out.per_rank * out.world;
  return out;
}

}  // namespace zinf::config
