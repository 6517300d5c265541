// Line charts as inline SVG.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace zinf::observe {

using Points = std::vector<std::pair<double, double>>;

struct Series {
  std::string name;
  std::vector<std::pair<double, double>>
      points;          // x ascending; points with a non-finite y leave a gap
  bool faint = false;  // drawn pale: the noise behind its own trend
};

struct ChartOptions {
  std::string title;
  std::string y_label;
  bool from_zero = false;  // the y axis starts at 0
  double y_max = 0;        // 0: from the data
};

// & < > " ' as entities.
std::string escape_html(const std::string& text);

// Thins to at most max_points, keeping the least and the greatest y of each bin and the first and
// last point.
Points thin(const Points& points, std::size_t max_points);

// Exponential moving average with this many points' memory; starts unbiased, skips non-finite
// values.
Points smoothed(const Points& points, double memory);

// Round tick values that cover [low, high] (low < high), about `count` of them.
std::vector<double> ticks(double low, double high, int count);

// <figure> with title, axes, one line per series and, for several, a legend. A series of one point
// is a dot.
std::string line_chart(const ChartOptions& options, const std::vector<Series>& series);

}  // namespace zinf::observe
