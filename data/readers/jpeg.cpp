#include "data/readers/jpeg.h"

#include <algorithm>
#include <array>
#include <csetjmp>
#include <cstdio>  // jpeglib.h needs it
#include <cstring>

#include <jpeglib.h>

namespace millrace {
namespace {

struct JpegErrors {
  jpeg_error_mgr base;  // the first member: the library knows it alone
  std::jmp_buf failed;
  char message[JMSG_LENGTH_MAX];
};

[[noreturn]] void stop_at_error(j_common_ptr info) {
  auto* errors = reinterpret_cast<JpegErrors*>(info->err);
  errors->base.format_message(info, errors->message);
  std::longjmp(errors->failed, 1);
}

/// A warning (premature end, corrupt data) counts as damage too and ends the decoding.
void stop_at_warning(j_common_ptr info, int level) {
  if (level < 0) stop_at_error(info);
}

/// One decoding of one JPEG. The library reports errors by a jump out of its C functions: nothing of C++ is
/// left behind by it. A reader that was used again would keep tables of the image before. A new one costs
/// 0.2 us; decoding an image of 32x32 pixels costs 15 us.
class JpegReader {
 public:
  JpegReader() = default;
  ~JpegReader() { jpeg_destroy_decompress(&info_); }
  JpegReader(const JpegReader&) = delete;
  JpegReader& operator=(const JpegReader&) = delete;

  /// Each returns false at an error. In this order: open, start, read.
  bool open(const std::string& bytes) {
    info_.err = jpeg_std_error(&errors_.base);
    errors_.base.error_exit = stop_at_error;
    errors_.base.emit_message = stop_at_warning;
    if (setjmp(errors_.failed)) return false;
    jpeg_create_decompress(&info_);
    jpeg_mem_src(&info_, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size());
    jpeg_read_header(&info_, TRUE);
    return true;
  }
  bool start(const PixelRegion& wanted) {
    if (setjmp(errors_.failed)) return false;
    info_.dct_method = JDCT_ISLOW;
    info_.out_color_space = kind() == JpegKind::Cmyk ? JCS_CMYK : JCS_EXT_RGB;
    jpeg_start_decompress(&info_);
    // At the ends of what is decoded colours are not blended with their neighbours: these pixels go beyond.
    left_ = static_cast<JDIMENSION>(std::max(0, wanted.left - kBlended));
    JDIMENSION columns =
        static_cast<JDIMENSION>(std::min(width(), wanted.left + wanted.width + kBlended)) - left_;
    top_ = static_cast<JDIMENSION>(std::max(0, wanted.top - kBlended));
    bottom_ = static_cast<JDIMENSION>(std::min(height(), wanted.top + wanted.height + kBlended));
    if (columns < info_.output_width) jpeg_crop_scanline(&info_, &left_, &columns);
    return true;
  }
  /// `to` has rows_written() rows of held().width pixels.
  bool read(JSAMPLE* to) {
    if (setjmp(errors_.failed)) return false;
    skip_to(top_);
    read_to(bottom_, to);
    // The rest is read too, because it may be damaged. Skipping to the very end would only look for that end.
    if (bottom_ < info_.output_height) {
      skip_to(info_.output_height - 1);
      read_to(info_.output_height, to + std::size_t{bottom_ - top_} * row_bytes());
    }
    jpeg_finish_decompress(&info_);
    return true;
  }

  int width() const { return static_cast<int>(info_.image_width); }
  int height() const { return static_cast<int>(info_.image_height); }
  JpegKind kind() const {
    if (info_.jpeg_color_space == JCS_CMYK || info_.jpeg_color_space == JCS_YCCK) return JpegKind::Cmyk;
    return info_.jpeg_color_space == JCS_GRAYSCALE ? JpegKind::Grey : JpegKind::Rgb;
  }
  PixelRegion held() const {
    return {static_cast<int>(left_), static_cast<int>(top_), static_cast<int>(info_.output_width),
            static_cast<int>(bottom_ - top_)};
  }
  /// The rows of held(), and one for the last row of the image.
  std::size_t rows_written() const { return bottom_ - top_ + (bottom_ < info_.output_height ? 1 : 0); }
  std::string error() const { return errors_.message; }

 private:
  static constexpr int kBlended = 8;

  std::size_t row_bytes() const {
    return std::size_t{info_.output_width} * static_cast<std::size_t>(info_.output_components);
  }
  void skip_to(JDIMENSION row) {
    while (info_.output_scanline < row && jpeg_skip_scanlines(&info_, row - info_.output_scanline) > 0) {
    }
  }
  void read_to(JDIMENSION row, JSAMPLE* to) {
    while (info_.output_scanline < row) {
      std::array<JSAMPROW, 16> rows{};  // as many as two rows of blocks
      const auto count = std::min<JDIMENSION>(rows.size(), row - info_.output_scanline);
      for (JDIMENSION i = 0; i < count; ++i) rows[i] = to + i * row_bytes();
      to += jpeg_read_scanlines(&info_, rows.data(), count) * row_bytes();
    }
  }

  jpeg_decompress_struct info_{};
  JpegErrors errors_{};
  JDIMENSION left_ = 0, top_ = 0, bottom_ = 0;
};

/// Converts Adobe's inverted CMYK to RGB.
void cmyk_to_rgb(const std::vector<std::uint8_t>& cmyk, std::vector<std::uint8_t>& rgb) {
  for (std::size_t i = 0, o = 0; i + 3 < cmyk.size(); i += 4) {
    const int k = cmyk[i + 3];
    for (int c = 0; c < 3; ++c)
      rgb[o++] = static_cast<std::uint8_t>(cmyk[i + static_cast<std::size_t>(c)] * k / 255);
  }
}

/// Returns an error text if the header exceeds the limits, else an empty one.
std::string beyond(const JpegLimits& limits, int width, int height, int scans) {
  const std::string size = std::to_string(width) + "x" + std::to_string(height) + " pixels";
  const std::int64_t pixels = std::int64_t{width} * height;
  if (pixels > limits.pixels)
    return size + " are more than " + std::to_string(limits.pixels >> 20) + " megapixels";
  if (scans > limits.scans)
    return std::to_string(scans) + " scans are more than " + std::to_string(limits.scans);
  if (pixels * scans > limits.scan_pixels)
    return size + " in " + std::to_string(scans) + " scans are too many";
  return "";
}

}  // namespace

int count_scans(const std::string& bytes) {
  constexpr unsigned char kStartOfImage = 0xd8, kEndOfImage = 0xd9, kStartOfScan = 0xda, kTemporary = 0x01;
  const auto byte = [&](std::size_t at) { return static_cast<unsigned char>(bytes[at]); };
  int scans = 0;
  for (std::size_t at = 0; at + 1 < bytes.size();) {
    // Entropy-coded data holds 0xff only before a zero or a restart marker.
    const void* found = std::memchr(bytes.data() + at, 0xff, bytes.size() - at - 1);
    if (!found) break;
    at = static_cast<std::size_t>(static_cast<const char*>(found) - bytes.data()) + 1;
    const unsigned char marker = byte(at);
    if (marker == 0xff) continue;  // a fill byte
    ++at;
    const bool restart = marker >= 0xd0 && marker <= 0xd7;
    if (marker == 0 || marker == kTemporary || marker == kStartOfImage || restart) continue;
    if (marker == kEndOfImage) break;
    scans += marker == kStartOfScan;
    if (at + 1 >= bytes.size()) break;
    at += static_cast<std::size_t>(byte(at) << 8 | byte(at + 1));
  }
  return scans;
}

bool decode_jpeg(const std::string& bytes, RgbImage& image, std::string& error, const JpegLimits& limits,
                 const RegionOf& region) {
  JpegReader reader;
  if (!reader.open(bytes)) {
    error = reader.error();
    return false;
  }
  image.width = reader.width();
  image.height = reader.height();
  image.kind = reader.kind();
  if (error = beyond(limits, image.width, image.height, count_scans(bytes)); !error.empty()) return false;
  const PixelRegion wanted =
      region ? region(image.width, image.height) : PixelRegion{0, 0, image.width, image.height};
  if (!reader.start(wanted)) {
    error = reader.error();
    return false;
  }
  image.held = reader.held();
  const auto row = static_cast<std::size_t>(image.held.width), rows = reader.rows_written();
  std::vector<std::uint8_t> raw;
  if (image.kind == JpegKind::Cmyk) raw.resize(4 * row * rows);
  // A buffer that is used again is not filled with zeros again.
  if (image.pixels.size() < 3 * row * rows) image.pixels.resize(3 * row * rows);
  if (!reader.read(raw.empty() ? image.pixels.data() : raw.data())) {
    error = reader.error();
    return false;
  }
  if (!raw.empty()) cmyk_to_rgb(raw, image.pixels);
  return true;
}

}  // namespace millrace
