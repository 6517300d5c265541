// An update that leaves parameters out is an error, never a run that looks like training.
#include <gtest/gtest.h>

#include "tests/step/random_case.h"
#include "tests/step/temp_folder.h"
#include "tests/step/watchdog.h"

namespace zinf {
namespace {

using testing::Case;
using testing::TempFolder;

// The message of the run whose update ops have been changed; empty where it went through.
std::string error_of_run(const Case& c, const std::string& folder, plan::Segment segment,
                         const std::function<void(plan::Op&)>& change) {
  plan::ProgramSet programs = plan::compile(c.input());
  for (plan::Op& op : programs.programs[static_cast<std::size_t>(segment)].ops) {
    if (op.kind == plan::OpKind::kUpdate) change(op);
  }
  testing::OutOfCoreOptions options;
  options.folder = folder;
  options.poison = false;
  try {
    run_out_of_core(c, options, std::move(programs));
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(UpdatedElements, ProgramsThatUpdateNothingOrTooLittleAreRefused) {
  const testing::Watchdog watchdog("updated elements");
  const TempFolder folder(testing::quick_parent());
  Case c = testing::plain_case(2);
  const auto change_nothing = [](plan::Op&) {};
  for (const int early : {0, 1}) {
    c.drawn.input.settings.early_updates = early;
    for (const plan::Segment segment :
         {plan::Segment::kUpdateForward, plan::Segment::kUpdateOnly, plan::Segment::kBackwardEarly,
          plan::Segment::kRestForward, plan::Segment::kRestOnly}) {
      const bool exists = early > 0 || segment == plan::Segment::kUpdateForward ||
                          segment == plan::Segment::kUpdateOnly;
      const std::string what = str(plan::segment_name(segment), ", early ", early);
      EXPECT_EQ(error_of_run(c, folder.path(), segment, change_nothing), "") << what;
      const std::string none =
          error_of_run(c, folder.path(), segment, [](plan::Op& op) { op.count = 0; });
      EXPECT_EQ(exists, none.find("change 0 elements of ") != std::string::npos) << what << none;
      EXPECT_EQ(exists, none.find("; expected all ") != std::string::npos) << what << none;
      const std::string last = error_of_run(c, folder.path(), segment, [&](plan::Op& op) {
        if (op.first + op.count == c.spec().pieces[static_cast<std::size_t>(op.piece)].elements)
          op.count -= model::kTile;
      });
      EXPECT_EQ(exists, last.find("; expected all ") != std::string::npos) << what << last;
    }
  }
}

TEST(UpdatedElements, AStepWithNothingToTrainIsAnError) {
  const testing::Watchdog watchdog("nothing to train");
  const TempFolder folder(testing::quick_parent());
  Case c = testing::plain_case(2);
  for (model::PieceSpec& piece : c.drawn.spec->pieces) piece.trainable = false;
  const std::string error =
      error_of_run(c, folder.path(), plan::Segment::kForward, [](plan::Op&) {});
  EXPECT_NE(error.find("would change no parameter"), std::string::npos) << error;
}

}  // namespace
}  // namespace zinf
