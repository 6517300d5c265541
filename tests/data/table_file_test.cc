#include "engine/data/table_file.h"

#include <cmath>

#include "engine/data/loader.h"
#include "tests/data/data_fixture.h"

namespace zinf::data {
namespace {

class TableFileTest : public DataTest {
 protected:
  std::string csv_error(const std::string& text) const {
    write_text("t.csv", text);
    std::string message = error_of([&] { read_csv(path("t.csv")); });
    const auto at = message.find(path("t.csv"));
    return at == 0 ? message.substr(folder_.string().size() + 1) : message;
  }
  static MicroBatch first_batch(std::shared_ptr<const RowSource> rows, int count) {
    LoaderOptions options;
    options.micro_batch = count;
    options.shuffle = false;
    return Loader(rows, options).step_batch(0).micro_batches.at(0);
  }
};

TEST_F(TableFileTest, QuotesBlankLinesAndLineEnds) {
  write_text("t.csv", "\xef\xbb\xbf\"a \"\"x\"\", b\",y\r\n1,-2.5\r\n\r\n\" 3 \",4e2\r\n5,6");
  const CsvTable table = read_csv(path("t.csv"));
  EXPECT_EQ(table.columns, (std::vector<std::string>{"a \"x\", b", "y"}));
  EXPECT_EQ(table.values, (std::vector<float>{1, -2.5f, 3, 400, 5, 6}));
  EXPECT_EQ(table.rows, 3);
}

TEST_F(TableFileTest, LongFilesCrossTheReadBuffer) {
  std::string text = "a,b\n";
  for (int i = 0; i < 200000; ++i) text += std::to_string(i) + "," + std::to_string(2 * i) + "\n";
  ASSERT_GT(text.size(), std::size_t{2} << 20);
  write_text("t.csv", text);
  const CsvTable table = read_csv(path("t.csv"));
  ASSERT_EQ(table.rows, 200000);
  for (int i = 0; i < 200000; ++i) ASSERT_EQ(table.values[2 * i + 1], 2.0f * i);
}

TEST_F(TableFileTest, ErrorsNameLineAndColumn) {
  EXPECT_EQ(csv_error(""), "t.csv is empty: expected a header line");
  EXPECT_EQ(csv_error("a,b\n"), "t.csv has a header but no row");
  EXPECT_EQ(csv_error("a,a\n1,2\n"), "t.csv line 1: two columns are named \"a\"");
  EXPECT_EQ(csv_error("a,b\n1,2\n3\n"), "t.csv line 3: 1 fields, but the header has 2");
  EXPECT_EQ(csv_error("a,b\n1,2\n3,\n"),
            "t.csv line 3, column \"b\": the cell is empty, expected a number\n"
            "  hint: fill in or remove rows with missing values");
  EXPECT_EQ(csv_error("a,b\n1,red\n"),
            "t.csv line 2, column \"b\": expected a number, found \"red\"\n"
            "  hint: columns of text must be turned into numbers first");
  for (const char* bad : {"NaN", "inf", "-inf", "1e39", "1e999"}) {
    EXPECT_EQ(
        csv_error(std::string("a,b\n1,") + bad + "\n"),
        std::string("t.csv line 2, column \"b\": ") + bad +
            " is not a finite 32-bit number\n  hint: fill in or remove rows with missing values");
  }
  write_text("t.csv", "a,b\n1e-400,-1e-50\n");  // close to zero, not missing
  EXPECT_EQ(read_csv(path("t.csv")).values, (std::vector<float>{0, -0.0f}));
  EXPECT_EQ(csv_error("a,b\n1,2 3\n").substr(0, 50),
            "t.csv line 2, column \"b\": expected a number, found");
  EXPECT_EQ(csv_error("a,b\n1,\"2\n3\n"), "t.csv line 2: a quoted field has no end");
  EXPECT_EQ(csv_error("a,b\n1,2\"3\n"), "t.csv line 2: field 2 has a quote inside unquoted text");
  EXPECT_EQ(csv_error("a,b\n1,\"2\"3\n"), "t.csv line 2: field 2 has a quote inside unquoted text");
}

TEST_F(TableFileTest, TargetColumnAndPaddingRows) {
  write_text("t.csv", "a,y,b\n1,10,2\n3,20,4\n5,30,6\n");
  const MicroBatch batch = first_batch(open_csv({path("t.csv")}, "y"), 4);
  EXPECT_EQ(batch.length, 1);
  EXPECT_EQ(batch.features, (std::vector<float>{1, 2, 3, 4, 5, 6, 0, 0}));
  EXPECT_EQ(batch.labels, (std::vector<float>{10, 20, 30, 0}));
  EXPECT_EQ(batch.targets, (std::vector<std::int32_t>{0, 0, 0, kIgnore}));
  EXPECT_EQ(batch.target_tokens, 3);
  EXPECT_EQ(first_batch(open_csv({path("t.csv")}, {}), 1).labels[0], 2);
  EXPECT_EQ(error_of([&] { open_csv({path("t.csv")}, "z"); }),
            path("t.csv") + " has no column \"z\" (data.target)\n  hint: columns: a, y, b");
  write_text("u.csv", "a,b,y\n1,2,3\n");
  EXPECT_EQ(error_of([&] {
              open_csv({path("t.csv"), path("u.csv")}, "y");
            }),
            path("u.csv") + ": its columns differ from those of " + path("t.csv"));
}

std::string npy(const std::string& header, const std::vector<float>& values) {
  std::string text("\x93NUMPY\x01\x00", 8);
  text += static_cast<char>(header.size());
  text += '\0';
  text += header;
  return text.append(reinterpret_cast<const char*>(values.data()), values.size() * 4);
}
std::string shape(const std::string& sizes) {
  return "{'descr': '<f4', 'fortran_order': False, 'shape': (" + sizes + "), }";
}

TEST_F(TableFileTest, NpyRows) {
  write_text("a.npy", npy(shape("2, 3"), {1, 2, 3, 4, 5, 6}));
  write_text("b.npy", npy(shape("1, 3"), {7, 8, 9}));
  const MicroBatch batch = first_batch(open_npy({path("a.npy"), path("b.npy")}), 3);
  EXPECT_EQ(batch.features, (std::vector<float>{1, 2, 4, 5, 7, 8}));
  EXPECT_EQ(batch.labels, (std::vector<float>{3, 6, 9}));
}

TEST_F(TableFileTest, NpyFilesThatAreRefused) {
  const auto refusal = [&](const std::string& text) {
    write_text("a.npy", text);
    return error_of([&] { open_npy({path("a.npy")}); });
  };
  EXPECT_NE(refusal(npy(shape("2, 3"), {1, 2, 3, 4, 5})).find("for 2 x 3 numbers, found"),
            std::string::npos);
  EXPECT_NE(refusal(npy(shape("1, 2"), {1, NAN})).find("row 0, column 1 is nan"),
            std::string::npos);
  EXPECT_NE(refusal(npy(shape("6,"), {1, 2, 3, 4, 5, 6})).find("two-dimensional"),
            std::string::npos);
  EXPECT_NE(refusal(npy(shape("9999999999999, 9999999"), {1})).find("two-dimensional"),
            std::string::npos);
  // Whose product is no number of bytes.
  EXPECT_NE(refusal(npy(shape("2147483648, 2147483648"), {})).find("two-dimensional"),
            std::string::npos);
  EXPECT_NE(refusal(npy(shape("2147483647, 2147483647"), {})).find("expected 18446744056529682"),
            std::string::npos);
  EXPECT_NE(refusal(npy("{'descr': '<f8', 'fortran_order': False, 'shape': (1, 1)}", {1, 2}))
                .find("float32"),
            std::string::npos);
  EXPECT_NE(refusal("no array at all").find("is not a .npy file"), std::string::npos);
  EXPECT_NE(refusal("short").find("too short"), std::string::npos);
}

}  // namespace
}  // namespace zinf::data
