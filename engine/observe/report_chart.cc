#include "engine/observe/report_chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "engine/observe/format.h"

namespace zinf::observe {

namespace {

constexpr double kWidth = 720, kHeight = 260, kLeft = 72, kRight = 20, kTop = 12, kBottom = 36;
constexpr std::size_t kMaxPoints = 1000;
// Okabe and Ito's palette: told apart with every kind of colour vision.
constexpr std::array<const char*, 7> kColours = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                                 "#e69f00", "#56b4e9", "#555555"};

struct Axis {
  double low, high, from, to;  // data range and where it lies in the picture
  double at(double value) const { return from + (value - low) / (high - low) * (to - from); }
};

struct Range {
  double low = std::numeric_limits<double>::infinity();
  double high = -std::numeric_limits<double>::infinity();
  void add(double value) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
};

// A flat or empty range gets some room, so that the axis has a scale.
Range widened(Range range) {
  if (!(range.low <= range.high)) return {0, 1};
  if (range.low == range.high) {
    const double room = range.low == 0 ? 1 : std::abs(range.low) * 0.1;
    return {range.low - room, range.high + room};
  }
  return range;
}

std::string number(double value) {
  if (value == 0) return "0";
  const double size = std::abs(value);
  return size >= 1e6 || size < 1e-3 ? format_learning_rate(value) : fmt::format("{:.4g}", value);
}

std::string axes(const Axis& x, const Axis& y, const ChartOptions& options) {
  std::string svg;
  for (const double value : ticks(y.low, y.high, 5)) {
    svg += fmt::format(
        "<line stroke=\"#e5e5e5\" x1=\"{0}\" x2=\"{1}\" y1=\"{2:.1f}\" y2=\"{2:.1f}\"/>"
        "<text x=\"{3}\" y=\"{4:.1f}\" text-anchor=\"end\">{5}</text>\n",
        kLeft, kWidth - kRight, y.at(value), kLeft - 6, y.at(value) + 4, number(value));
  }
  for (const double value : ticks(x.low, x.high, 8)) {
    if (value != std::floor(value)) continue;  // steps are whole
    svg += fmt::format("<text x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\">{:.0f}</text>\n",
                       x.at(value), kHeight - kBottom + 16, value);
  }
  svg += fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">step</text>\n",
                     (kLeft + kWidth - kRight) / 2, kHeight - 4);
  svg += fmt::format(
      "<text x=\"12\" y=\"{0}\" text-anchor=\"middle\" transform=\"rotate(-90 12 "
      "{0})\">{1}</text>\n",
      (kTop + kHeight - kBottom) / 2, escape_html(options.y_label));
  svg += fmt::format(
      "<rect fill=\"none\" stroke=\"#999\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"/>\n", kLeft,
      kTop, kWidth - kLeft - kRight, kHeight - kTop - kBottom);
  return svg;
}

std::string polyline(const Points& points, const Axis& x, const Axis& y, const char* colour,
                     bool faint) {
  std::string path;
  bool pen_down = false;
  for (const auto& [px, py] : points) {
    if (!std::isfinite(py)) {
      pen_down = false;
      continue;
    }
    path += fmt::format("{}{:.1f} {:.1f}", pen_down ? "L" : "M", x.at(px),
                        y.at(std::clamp(py, y.low, y.high)));
    pen_down = true;
  }
  if (points.size() == 1 && !path.empty()) path += "l0.1 0";  // round caps make it a dot
  return path.empty()
             ? ""
             : fmt::format(
                   "<path d=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"{}\" "
                   "stroke-opacity=\"{}\" stroke-linecap=\"round\" stroke-linejoin=\"round\"/>\n",
                   path, colour, faint ? 1 : 1.5, faint ? 0.35 : 1.0);
}

}  // namespace

std::string escape_html(const std::string& text) {
  std::string escaped;
  for (const char c : text) {
    switch (c) {
      case '&':
        escaped += "&amp;";
        break;
      case '<':
        escaped += "&lt;";
        break;
      case '>':
        escaped += "&gt;";
        break;
      case '"':
        escaped += "&quot;";
        break;
      case '\'':
        escaped += "&#39;";
        break;
      default:
        escaped += c;
    }
  }
  return escaped;
}

Points thin(const Points& points, std::size_t max_points) {
  if (points.size() <= max_points || max_points < 4) return points;
  const std::size_t bins = (max_points - 2) / 2;
  const std::size_t inner = points.size() - 2;
  Points kept = {points.front()};
  for (std::size_t bin = 0; bin < bins; ++bin) {
    const std::size_t begin = 1 + bin * inner / bins, end = 1 + (bin + 1) * inner / bins;
    std::size_t least = begin, greatest = begin;
    for (std::size_t i = begin; i < end; ++i) {
      if (points[i].second < points[least].second) least = i;
      if (points[i].second > points[greatest].second) greatest = i;
    }
    kept.push_back(points[std::min(least, greatest)]);
    if (least != greatest) kept.push_back(points[std::max(least, greatest)]);
  }
  kept.push_back(points.back());
  return kept;
}

Points smoothed(const Points& points, double memory) {
  Points trend;
  double sum = 0, weight = 0;
  const double keep = 1 - 1 / std::max(memory, 1.0);
  for (const auto& [x, y] : points) {
    if (!std::isfinite(y)) continue;
    sum = sum * keep + y;
    weight = weight * keep + 1;  // dividing by it takes the bias of the start out
    trend.emplace_back(x, sum / weight);
  }
  return trend;
}

std::vector<double> ticks(double low, double high, int count) {
  const double raw = (high - low) / std::max(count, 1);
  const double power = std::pow(10.0, std::floor(std::log10(raw)));
  const double head = raw / power;
  const double unit = power * (head < 1.5 ? 1 : head < 3.5 ? 2 : head < 7.5 ? 5 : 10);
  std::vector<double> values;
  const auto first = static_cast<long long>(std::ceil(low / unit - 1e-9));
  for (long long i = first; static_cast<double>(i) * unit <= high + unit * 1e-9; ++i) {
    values.push_back(static_cast<double>(i) * unit);
  }
  return values;
}

std::string line_chart(const ChartOptions& options, const std::vector<Series>& series) {
  Range x_range, y_range;
  if (options.from_zero) y_range.add(0);
  if (options.y_max > 0) y_range.add(options.y_max);
  for (const Series& one : series) {
    for (const auto& [x, y] : one.points) {
      x_range.add(x);
      if (std::isfinite(y)) y_range.add(y);
    }
  }
  x_range = widened(x_range);
  y_range = widened(y_range);
  const Axis x{x_range.low, x_range.high, kLeft, kWidth - kRight};
  const Axis y{y_range.low, y_range.high, kHeight - kBottom, kTop};

  std::string html =
      fmt::format("<figure><figcaption>{}</figcaption>\n", escape_html(options.title));
  html += fmt::format(
      "<svg viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}\" fill=\"#555\" font-size=\"11\" "
      "font-family=\"sans-serif\">\n",
      kWidth, kHeight, escape_html(options.title));
  html += axes(x, y, options);
  for (std::size_t i = 0; i < series.size(); ++i) {
    html += polyline(thin(series[i].points, kMaxPoints), x, y, kColours[i % kColours.size()],
                     series[i].faint);
  }
  html += "</svg>\n";
  if (series.size() > 1) {
    html += "<p class=\"legend\">";
    for (std::size_t i = 0; i < series.size(); ++i) {
      html += fmt::format("<span><i style=\"background:{}\"></i>{}</span> ",
                          kColours[i % kColours.size()], escape_html(series[i].name));
    }
    html += "</p>\n";
  }
  return html + "</figure>\n";
}

}  // namespace zinf::observe
