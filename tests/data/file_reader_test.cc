#include "engine/data/file_reader.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <future>
#include <thread>

#include "engine/base/under_way.h"
#include "tests/data/data_fixture.h"

namespace zinf::data {
namespace {

class FileReaderTest : public DataTest {};

// Opening a fifo that nobody writes waits, as a dead server lets a reader wait.
TEST_F(FileReaderTest, WhatHangsIsNamed) {
  EXPECT_FALSE(longest_call());
  const std::string fifo = path("fifo");
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  auto opening = std::async(std::launch::async, [&] { FileReader reader(fifo); });
  std::optional<Activity> found;
  while (!(found = longest_call())) std::this_thread::yield();
  EXPECT_EQ(found->lane, "data");
  EXPECT_EQ(found->what, "opening " + fifo);
  EXPECT_GE(found->seconds, 0);
  ::close(::open(fifo.c_str(), O_WRONLY));
  EXPECT_THROW(opening.get(), Error);  // it is no regular file
  EXPECT_FALSE(longest_call());
}

}  // namespace
}  // namespace zinf::data
