#include "engine/observe/report_chart.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

namespace zinf::observe {
namespace {

TEST(ReportChart, Ticks) {
  EXPECT_EQ(ticks(0, 10, 5), (std::vector<double>{0, 2, 4, 6, 8, 10}));
  EXPECT_EQ(ticks(1, 2, 2), (std::vector<double>{1, 1.5, 2}));
  EXPECT_EQ(ticks(-3, 3, 3), (std::vector<double>{-2, 0, 2}));
  for (const double value : ticks(0, 0.3, 3)) EXPECT_LE(value, 0.3 + 1e-12);
}

TEST(ReportChart, ThinKeepsEndsAndExtremes) {
  Points points;
  for (int i = 0; i < 100'000; ++i) points.emplace_back(i, 1.0);
  points[12345].second = 9;
  points[54321].second = -9;
  const Points kept = thin(points, 1000);
  EXPECT_LE(kept.size(), 1000u);
  EXPECT_EQ(kept.front(), points.front());
  EXPECT_EQ(kept.back(), points.back());
  EXPECT_NE(std::find(kept.begin(), kept.end(), points[12345]), kept.end());
  EXPECT_NE(std::find(kept.begin(), kept.end(), points[54321]), kept.end());
  EXPECT_TRUE(std::is_sorted(kept.begin(), kept.end(),
                             [](const auto& a, const auto& b) { return a.first < b.first; }));
}

TEST(ReportChart, ThinLeavesShortSeriesAlone) {
  const Points points = {{1, 2}, {2, 3}};
  EXPECT_EQ(thin(points, 1000), points);
}

TEST(ReportChart, SmoothedStartsUnbiasedAndSkipsWhatIsNotFinite) {
  const Points trend = smoothed({{1, 8}, {2, NAN}, {3, 8}, {4, 2}}, 2);
  ASSERT_EQ(trend.size(), 3u);
  EXPECT_DOUBLE_EQ(trend[0].second, 8);
  EXPECT_DOUBLE_EQ(trend[1].second, 8);
  EXPECT_DOUBLE_EQ(trend[2].second, (8 * 0.25 + 8 * 0.5 + 2) / 1.75);
}

TEST(ReportChart, NonFinitePointsLeaveAGap) {
  const std::string svg =
      line_chart({"t", "y"}, {{"a", {{1, 1}, {2, 2}, {3, NAN}, {4, 1}, {5, INFINITY}, {6, 2}}}});
  EXPECT_EQ(svg.find("nan"), std::string::npos);
  EXPECT_EQ(svg.find("inf"), std::string::npos);
  const auto path = svg.substr(svg.find("<path d="));
  const auto data = path.substr(0, path.find(" fill"));
  EXPECT_EQ(std::count(data.begin(), data.end(), 'M'), 3);
}

TEST(ReportChart, FlatEmptyAndSinglePointSeriesAreDrawn) {
  for (const Points& points :
       {Points{}, Points{{1, 5}}, Points{{1, 0}, {2, 0}}, Points{{1, NAN}}}) {
    const std::string svg = line_chart({"t", "y"}, {{"a", points}});
    EXPECT_EQ(svg.find("nan"), std::string::npos);
    EXPECT_NE(svg.find("</svg>"), std::string::npos);
  }
}

TEST(ReportChart, Escapes) {
  EXPECT_EQ(escape_html("<a & \"b\" 'c'>"), "&lt;a &amp; &quot;b&quot; &#39;c&#39;&gt;");
  const std::string svg = line_chart({"<t>", "y"}, {{"<a>", {{1, 1}}}, {"b", {{1, 2}}}});
  EXPECT_EQ(svg.find("<t>"), std::string::npos);
  EXPECT_EQ(svg.find("<a>"), std::string::npos);
}

}  // namespace
}  // namespace zinf::observe
