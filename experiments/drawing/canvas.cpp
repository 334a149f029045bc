#include "experiments/drawing/canvas.h"

#include <cairo-pdf.h>
#include <cairo.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <numbers>

#include "runtime/base/files.h"
#include "runtime/base/unfinished_file.h"
#include "runtime/drawing/svg.h"

namespace millrace {
namespace {

constexpr const char* kFont = "Helvetica, Arial, Liberation Sans, sans-serif";

std::string hex(Ink c) {
  return to_hex({double(c.red), double(c.green), double(c.blue)});
}

/// Two decimals are 1/7200 inch.
void append_number(std::string& out, double value) {
  const std::string text = printed("%.2f", std::isfinite(value) ? value : 0.0);
  std::string_view shown = text;
  while (shown.ends_with('0')) shown.remove_suffix(1);
  if (shown.ends_with('.')) shown.remove_suffix(1);
  out += shown;
}

class SvgCanvas final : public Canvas {
 public:
  SvgCanvas(double width, double height, std::string path) : path_(std::move(path)) {
    out_ = "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 ";
    append_number(out_, width);
    out_ += ' ';
    append_number(out_, height);
    out_ += "\" width=\"";
    append_number(out_, width);
    out_ += "pt\" height=\"";
    append_number(out_, height);
    out_ += "pt\" font-family=\"" + std::string(kFont) + "\">\n";
    rectangle(0, 0, width, height, {255, 255, 255, 1});
  }
  void rectangle(double x, double y, double width, double height, Ink fill) override {
    element("rect", {{"x", x}, {"y", y}, {"width", width}, {"height", height}});
    paint("fill", fill);
    out_ += "/>\n";
  }
  void line(double x1, double y1, double x2, double y2, Ink colour, double width) override {
    element("line", {{"x1", x1}, {"y1", y1}, {"x2", x2}, {"y2", y2}});
    paint("stroke", colour);
    attribute("stroke-width", width);
    out_ += "/>\n";
  }
  void polyline(const std::vector<std::pair<double, double>>& points, Ink colour, double width) override {
    if (points.empty()) return;
    out_ += "<polyline fill=\"none\" stroke-linejoin=\"round\"";
    shape(points);
    paint("stroke", colour);
    attribute("stroke-width", width);
    out_ += "/>\n";
  }
  void polygon(const std::vector<std::pair<double, double>>& points, Ink fill) override {
    if (points.empty()) return;
    out_ += "<polygon";
    shape(points);
    paint("fill", fill);
    out_ += "/>\n";
  }
  void text(double x, double y, std::string_view text, const TextStyle& style) override {
    static constexpr const char* kAnchors[] = {"start", "middle", "end"};
    element("text", {{"x", x}, {"y", y}, {"font-size", style.size}});
    paint("fill", style.colour);
    out_ += std::string(" text-anchor=\"") + kAnchors[static_cast<int>(style.anchor)] + "\"";
    if (style.bold) out_ += " font-weight=\"bold\"";
    if (style.upwards) {
      out_ += " transform=\"rotate(-90 ";
      append_number(out_, x);
      out_ += ' ';
      append_number(out_, y);
      out_ += ")\"";
    }
    out_ += ">" + escape_xml(text) + "</text>\n";
  }
  Status finish() override {
    out_ += "</svg>\n";
    return write_file_atomically(path_, out_);
  }

 private:
  void attribute(const char* name, double value) {
    out_ += std::string(" ") + name + "=\"";
    append_number(out_, value);
    out_ += '"';
  }
  void element(const char* name, std::initializer_list<std::pair<const char*, double>> attributes) {
    out_ += std::string("<") + name;
    for (const auto& [key, value] : attributes) attribute(key, value);
  }
  void paint(const char* what, Ink colour) {
    out_ += std::string(" ") + what + "=\"" + hex(colour) + "\"";
    if (colour.opacity < 1) attribute((std::string(what) + "-opacity").c_str(), colour.opacity);
  }
  void shape(const std::vector<std::pair<double, double>>& points) {
    out_ += " points=\"";
    for (const auto& [x, y] : points) {
      append_number(out_, x);
      out_ += ',';
      append_number(out_, y);
      out_ += ' ';
    }
    out_.back() = '"';
  }
  std::string path_, out_;
};

class CairoCanvas final : public Canvas {
 public:
  CairoCanvas(const std::string& path, double width, double height, double dots_per_inch)
      : path_(path), partial_(path + ".partial"), unfinished_(partial_), png_(path.ends_with(".png")) {
    const double scale = dots_per_inch / 72;
    surface_ =
        png_ ? cairo_image_surface_create(CAIRO_FORMAT_RGB24, static_cast<int>(std::lround(width * scale)),
                                          static_cast<int>(std::lround(height * scale)))
             : cairo_pdf_surface_create(partial_.c_str(), width, height);
    cairo_ = cairo_create(surface_);
    if (png_) cairo_scale(cairo_, scale, scale);
    rectangle(0, 0, width, height, {255, 255, 255, 1});
  }
  ~CairoCanvas() override {
    cairo_destroy(cairo_);
    cairo_surface_destroy(surface_);
    std::error_code ignored;
    std::filesystem::remove(partial_, ignored);
  }
  CairoCanvas(const CairoCanvas&) = delete;
  CairoCanvas& operator=(const CairoCanvas&) = delete;
  cairo_status_t status() const { return cairo_status(cairo_); }

  void rectangle(double x, double y, double width, double height, Ink fill) override {
    source(fill);
    cairo_rectangle(cairo_, x, y, width, height);
    cairo_fill(cairo_);
  }
  void line(double x1, double y1, double x2, double y2, Ink colour, double width) override {
    polyline({{x1, y1}, {x2, y2}}, colour, width);
  }
  void polyline(const std::vector<std::pair<double, double>>& points, Ink colour, double width) override {
    if (points.empty()) return;
    path(points);
    source(colour);
    cairo_set_line_width(cairo_, width);
    cairo_set_line_join(cairo_, CAIRO_LINE_JOIN_ROUND);
    cairo_stroke(cairo_);
  }
  void polygon(const std::vector<std::pair<double, double>>& points, Ink fill) override {
    if (points.empty()) return;
    path(points);
    source(fill);
    cairo_close_path(cairo_);
    cairo_fill(cairo_);
  }
  void text(double x, double y, std::string_view text, const TextStyle& style) override {
    std::string shown(text);
    shown.erase(std::remove(shown.begin(), shown.end(), '\0'), shown.end());
    cairo_select_font_face(cairo_, "sans-serif", CAIRO_FONT_SLANT_NORMAL,
                           style.bold ? CAIRO_FONT_WEIGHT_BOLD : CAIRO_FONT_WEIGHT_NORMAL);
    cairo_set_font_size(cairo_, style.size);
    cairo_text_extents_t extents;
    cairo_text_extents(cairo_, shown.c_str(), &extents);
    const double back = style.anchor == Anchor::Start    ? 0
                        : style.anchor == Anchor::Middle ? extents.x_advance / 2
                                                         : extents.x_advance;
    source(style.colour);
    cairo_save(cairo_);
    cairo_translate(cairo_, x, y);
    if (style.upwards) cairo_rotate(cairo_, -std::numbers::pi / 2);
    cairo_move_to(cairo_, -back, 0);
    cairo_show_text(cairo_, shown.c_str());
    cairo_restore(cairo_);
  }
  Status finish() override {
    cairo_surface_flush(surface_);
    cairo_status_t result = cairo_status(cairo_);
    if (result == CAIRO_STATUS_SUCCESS && png_)
      result = cairo_surface_write_to_png(surface_, partial_.c_str());
    if (!png_) cairo_surface_finish(surface_);
    if (result == CAIRO_STATUS_SUCCESS) result = cairo_surface_status(surface_);
    if (result != CAIRO_STATUS_SUCCESS)
      return Problem{path_, std::string("cannot be drawn: ") + cairo_status_to_string(result), ""};
    std::error_code error;
    std::filesystem::rename(partial_, path_, error);
    if (error) return Problem{path_, "cannot be written: " + error.message(), ""};
    return Ok{};
  }

 private:
  void source(Ink c) {
    cairo_set_source_rgba(cairo_, c.red / 255.0, c.green / 255.0, c.blue / 255.0, c.opacity);
  }
  void path(const std::vector<std::pair<double, double>>& points) {
    cairo_new_path(cairo_);
    for (const auto& [x, y] : points) cairo_line_to(cairo_, x, y);
  }
  std::string path_, partial_;
  UnfinishedFile unfinished_;
  bool png_;
  cairo_surface_t* surface_;
  cairo_t* cairo_;
};

}  // namespace

Ink ink(std::string_view hex, double opacity) {
  unsigned value = 0;
  if (hex.size() != 7 || std::sscanf(std::string(hex).c_str(), "#%6x", &value) != 1)
    return {0, 0, 0, opacity};
  return {static_cast<std::uint8_t>(value >> 16), static_cast<std::uint8_t>(value >> 8 & 255),
          static_cast<std::uint8_t>(value & 255), opacity};
}

Result<std::unique_ptr<Canvas>> make_canvas(const std::string& path, double width, double height,
                                            double dots_per_inch) {
  // A picture of cairo has a most number of pixels.
  const double pixels = std::max(width, height) * dots_per_inch / 72;
  if (!(width > 0) || !(height > 0) || pixels > 32767)
    return Problem{path, "is a picture of " + short_number(width) + " x " + short_number(height) + " points",
                   "fewer panels, or fewer dots per inch"};
  if (path.ends_with(".svg")) return std::unique_ptr<Canvas>(new SvgCanvas(width, height, path));
  if (!path.ends_with(".png") && !path.ends_with(".pdf"))
    return Problem{path, "is no kind of picture that can be drawn", "a name that ends in .svg, .png or .pdf"};
  auto canvas = std::make_unique<CairoCanvas>(path, width, height, dots_per_inch);
  if (canvas->status() != CAIRO_STATUS_SUCCESS)
    return Problem{path, std::string("cannot be drawn: ") + cairo_status_to_string(canvas->status()),
                   "is the folder there and writable?"};
  return std::unique_ptr<Canvas>(std::move(canvas));
}

}  // namespace millrace
