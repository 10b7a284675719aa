#include "convert/convert.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstring>
#include <deque>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "base/number_formats.h"
#include "convert/disk.h"
#include "model/weights_check.h"
#include "support/forward_runner.h"
#include "support/golden.h"
#include "support/numeric.h"
#include "support/shared_data.h"
#include "support/temp_folder.h"
#include "tools/synthetic_checkpoint.h"

namespace palimpsest::convert {
namespace {

namespace fs = std::filesystem;
using test::TempFolder;
using testing::AllOf;
using testing::HasSubstr;

const fs::path kDemo = test::project_path("models/demo");
constexpr std::uint64_t kMegabyte = 1 << 20;

std::vector<std::int32_t> some_ids(std::int64_t vocab, std::size_t count = 24) {
  std::vector<std::int32_t> ids(count);
  for (std::size_t i = 0; i < count; ++i) ids[i] = static_cast<std::int32_t>((i * 7919 + 13) % static_cast<std::size_t>(vocab));
  return ids;
}

std::vector<float> logits(const fs::path& folder, std::size_t count = 24) {
  const auto model = Model::load(folder);
  return test::ForwardRunner(model, 1, 1).run(some_ids(model->config().vocab_size, count), count);
}

nlohmann::json read_json(const fs::path& path) { return nlohmann::json::parse(test::read_file(path)); }

std::map<std::string, std::string> files_of(const fs::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& file : fs::directory_iterator(folder)) files[file.path().filename()] = test::read_file(file.path());
  return files;
}

/// Element [row, col] of a weight wherever it is; without the library that is tested.
float element(const formats::Checkpoint& checkpoint, const StoredWeight& w, std::int64_t row, std::int64_t col) {
  if (w.dense) return load_float(checkpoint.view(*w.dense), row * w.dense->sizes[1] + col);
  const std::int64_t cols = w.codes->sizes[1] * (w.is_mxfp4() ? 2 : 1), at = row * cols + col;
  const Tensor codes = checkpoint.view(*w.codes), scales = checkpoint.view(*w.scales);
  if (w.is_int8()) return static_cast<float>(codes.as<std::int8_t>()[at]) * load_float(scales, at / 32);
  return e2m1_to_float(codes.as<std::uint8_t>()[at / 2] >> (at % 2 * 4) & 15) * e8m0_to_float(scales.as<std::uint8_t>()[at / 32]);
}

struct Opened {
  ModelConfig config;
  std::vector<WeightSpec> specs;
  formats::Checkpoint checkpoint;
  explicit Opened(const fs::path& folder)
      : config(load_model_config(folder.string())), specs(weight_spec(config)), checkpoint(value_or_throw(formats::Checkpoint::open(folder))) {}
  StoredWeight find(const WeightSpec& spec) const { return value_or_throw(locate_weight(config, spec, checkpoint)); }
};

/// The same model with every quantised matrix decoded, without the library that is tested: 8 bits into F32, MXFP4 into BF16, which holds every
/// such number.
void write_decoded(const fs::path& from, const fs::path& to) {
  const Opened in(from);
  fs::create_directories(to);
  auto config = read_json(from / "config.json");
  config.erase("quantization_config");
  if (config.contains("text_config")) config["text_config"].erase("quantization_config");
  std::ofstream(to / "config.json") << config.dump();
  std::deque<std::vector<float>> memory;
  std::deque<std::vector<std::uint16_t>> half_memory;
  std::vector<formats::NamedTensor> tensors;
  for (const WeightSpec& spec : in.specs) {
    const StoredWeight stored = in.find(spec);
    if (stored.dense) {
      tensors.push_back({std::string(stored.dense->name), in.checkpoint.view(*stored.dense)});
      continue;
    }
    const auto [rows, cols] = quantised_shape(spec);
    auto& values = memory.emplace_back();
    for (std::int64_t r = 0; r < (spec.transposed ? cols : rows); ++r) {
      for (std::int64_t c = 0; c < (spec.transposed ? rows : cols); ++c) {
        values.push_back(spec.transposed ? element(in.checkpoint, stored, c, r) : element(in.checkpoint, stored, r, c));
      }
    }
    std::string name(stored.codes->name);
    if (stored.is_int8()) {
      tensors.push_back({name, Tensor::contiguous(values.data(), DType::kF32, {spec.sizes[0], spec.sizes[1]})});
      continue;
    }
    name.resize(name.size() - 7);
    auto& bits = half_memory.emplace_back(test::to_bf16(values));
    for (std::size_t i = 0; i < bits.size(); ++i) ASSERT_EQ(bf16_to_float(bits[i]), values[i]);
    tensors.push_back({name, Tensor::contiguous(bits.data(), DType::kBF16, {spec.sizes[0], spec.sizes[1]})});
  }
  formats::write_safetensors(to / "model.safetensors", tensors);
}

// ---- the demo model ----

TEST(Convert, DecodingFourBitsIntoBf16ChangesNoBit) {
  const TempFolder folder;
  const Report report = convert_checkpoint({.input = kDemo, .output = folder / "out", .weights = Form::kBf16});
  ASSERT_FALSE(report.roles.empty());
  for (const RoleReport& role : report.roles) {
    EXPECT_EQ(role.from, "MXFP4");
    EXPECT_EQ(role.max_error, 0) << role.role;
  }
  EXPECT_TRUE(test::bit_equal(logits(folder / "out"), logits(kDemo)));
  EXPECT_FALSE(read_json(folder / "out/config.json")["text_config"].contains("quantization_config"));
  // And back: the codes of the experts are those of the original.
  convert_checkpoint({.input = folder / "out", .output = folder / "back", .experts = Form::kMxfp4});
  const Opened before(kDemo), after(folder / "back");
  std::int64_t matrices = 0;
  for (const WeightSpec& spec : before.specs) {
    const StoredWeight a = before.find(spec), b = after.find(spec);
    ASSERT_EQ(a.is_mxfp4(), b.is_mxfp4());
    if (!a.is_mxfp4()) continue;
    ++matrices;
    for (std::int64_t r = 0; r < spec.sizes[0]; ++r) {
      for (std::int64_t c = 0; c < spec.sizes[1]; ++c) {
        ASSERT_EQ(element(before.checkpoint, a, r, c), element(after.checkpoint, b, r, c));
      }
    }
  }
  EXPECT_GT(matrices, 100);
}

TEST(Convert, EightBitsOfTheDemoModel) {
  const TempFolder folder;
  const Report report = convert_checkpoint({.input = kDemo, .output = folder / "out", .weights = Form::kInt8});
  // Every number within half a step of the old one, a step being the group's scale.
  const Opened before(kDemo), after(folder / "out");
  std::int64_t converted = 0;
  for (const WeightSpec& spec : after.specs) {
    const StoredWeight a = before.find(spec), b = after.find(spec);
    if (!b.is_int8()) continue;
    ++converted;
    const Tensor scales = after.checkpoint.view(*b.scales);
    for (std::int64_t r = 0; r < spec.sizes[0]; ++r) {
      for (std::int64_t c = 0; c < spec.sizes[1]; ++c) {
        const double old_value = static_cast<double>(element(before.checkpoint, a, r, c)), value = static_cast<double>(element(after.checkpoint, b, r, c));
        const double step = static_cast<double>(load_float(scales, (r * spec.sizes[1] + c) / 32));
        ASSERT_LE(std::abs(value - old_value), step * (0.5 + 127 * 0x1p-24)) << b.codes->name;
      }
    }
  }
  std::int64_t reported = 0;
  double worst = 0;
  for (const RoleReport& role : report.roles) {
    reported += role.matrices;
    worst = std::max(worst, role.rms_error);
    EXPECT_LE(role.max_error, 0.5 / 127 * (1 + 0x1p-8));  // half a step of the group with the largest number
  }
  EXPECT_EQ(reported, converted);
  EXPECT_LT(report.bytes_after, report.bytes_before);

  // To first order each product adds at most its own relative error to what flows through it, so all of them together add no more than
  // their number times the worst.
  const std::vector<float> want = logits(kDemo), got = logits(folder / "out");
  double difference = 0, size = 0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    difference += std::pow(static_cast<double>(got[i]) - static_cast<double>(want[i]), 2);
    size += std::pow(static_cast<double>(want[i]), 2);
  }
  const double products_in_a_row = 8 * 6;  // layers; of each q or k or v, o, down into the latent space, up and down in an expert, up again
  RecordProperty("relative_logit_error", fmt::format("{}", std::sqrt(difference / size)));
  EXPECT_LT(std::sqrt(difference / size), products_in_a_row * worst);
  EXPECT_GT(difference, 0);
}

TEST(Convert, WritesWhatCompressedTensorsReads) {
  const TempFolder folder;
  convert_checkpoint({.input = kDemo, .output = folder / "q8", .weights = Form::kInt8});
  const auto config = read_json(folder / "q8/config.json")["text_config"]["quantization_config"];
  EXPECT_EQ(config["format"], "mixed-precision");  // the experts stay MXFP4
  EXPECT_EQ(config["config_groups"]["group_0"]["format"], "int-quantized");
  EXPECT_EQ(config["config_groups"]["group_0"]["weights"]["num_bits"], 8);
  EXPECT_EQ(config["config_groups"]["group_0"]["weights"]["group_size"], 32);
  EXPECT_EQ(config["config_groups"]["group_1"]["format"], "mxfp4-pack-quantized");
  EXPECT_EQ(config["config_groups"]["group_1"]["targets"], nlohmann::json({R"(re:.*experts\.[0-9]+\.w1$)", R"(re:.*experts\.[0-9]+\.w3$)",
                                                                          R"(re:.*experts\.[0-9]+\.w2$)"}));
  for (const char* kept : {"re:.*lm_head$", R"(re:.*\.block_sparse_moe\.gate$)", R"(re:.*\.self_attn\.b_proj$)"}) {
    EXPECT_THAT(config["ignore"].get<std::vector<std::string>>(), testing::Contains(kept));
  }
  const auto file = value_or_throw(formats::Checkpoint::open(folder / "q8"));
  const std::string name = "language_model.model.layers.0.self_attn.q_proj.weight";
  EXPECT_EQ(describe(*file.find(name)), "I8 [384, 384]");
  EXPECT_EQ(describe(*file.find(name + "_scale")), "BF16 [384, 12]");
  EXPECT_EQ(file.find("language_model.lm_head.weight")->dtype, DType::kBF16);

  convert_checkpoint({.input = kDemo, .output = folder / "mx", .weights = Form::kMxfp4});
  const auto mx = read_json(folder / "mx/config.json")["text_config"]["quantization_config"];
  EXPECT_EQ(mx["format"], "mxfp4-pack-quantized");
  EXPECT_EQ(mx["config_groups"]["group_0"]["targets"], nlohmann::json({"Linear"}));
  const auto mx_file = value_or_throw(formats::Checkpoint::open(folder / "mx"));
  EXPECT_EQ(describe(*mx_file.find(name + "_packed")), "U8 [384, 192]");
  EXPECT_EQ(describe(*mx_file.find(name + "_scale")), "U8 [384, 12]");

  // All the other files, byte for byte; no README.
  for (const char* companion : {"tiktoken.model", "tokenizer_config.json", "generation_config.json", "filler.txt"}) {
    EXPECT_EQ(test::read_file(folder / "q8" / companion), test::read_file(kDemo / companion));
  }
  EXPECT_FALSE(fs::exists(folder / "q8" / "README.md"));
  EXPECT_EQ(read_json(folder / "q8/model.safetensors.index.json")["metadata"]["total_size"], file.tensor_bytes());
}

TEST(Convert, F16AndWhatItCannotHold) {
  const TempFolder folder;
  convert_checkpoint({.input = kDemo, .output = folder / "out", .weights = Form::kF16});
  EXPECT_EQ(read_json(folder / "out/config.json")["text_config"]["dtype"], "float16");
  const Opened before(kDemo), after(folder / "out");
  for (const WeightSpec& spec : before.specs) {
    if (spec.rank != 2 || spec.sizes[0] == 1) continue;
    const StoredWeight a = before.find(spec), b = after.find(spec);
    ASSERT_EQ(b.dense->dtype, DType::kF16);
    for (std::int64_t i = 0; i < spec.parameters(); i += 7) {
      const float value = element(before.checkpoint, a, i / spec.sizes[1], i % spec.sizes[1]);
      ASSERT_EQ(load_float(after.checkpoint.view(*b.dense), i), f16_to_float(float_to_f16(value)));
    }
  }
}

/// A synthetic model with one number of one tensor replaced.
void write_spoilt(const fs::path& folder, std::string_view tensor, std::uint16_t bits) {
  synthetic::write_checkpoint(folder, synthetic::config_json({}), {.mxfp4_experts = false});
  std::uint64_t offset = 0;
  {
    const auto file = value_or_throw(formats::Checkpoint::open(folder));
    for (const auto& entry : file.entries()) {
      if (entry.name.ends_with(tensor)) offset = entry.offset + 2 * 70;
    }
  }
  std::fstream file(folder / "model.safetensors", std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(static_cast<std::streamoff>(offset));
  file.write(reinterpret_cast<const char*>(&bits), sizeof bits);
}

std::string error_of(const Options& options) {
  try {
    convert_checkpoint(options);
    return "no error";
  } catch (const Error& error) {
    return error.text();
  }
}

TEST(Convert, NamesValuesThatTheNewFormCannotHold) {
  const TempFolder folder;
  write_spoilt(folder / "nan", "layers.1.self_attn.q_proj.weight", 0x7fc0);
  for (const Form form : {Form::kInt8, Form::kMxfp4, Form::kF16}) {
    EXPECT_THAT(error_of({.input = folder / "nan", .output = folder / "out", .weights = form}),
                AllOf(HasSubstr("layers.1.self_attn.q_proj.weight"), HasSubstr("[1, 6] is nan"), HasSubstr(form_name(form))));
    EXPECT_FALSE(fs::exists(folder / "out"));
  }
  write_spoilt(folder / "large", "layers.1.self_attn.q_proj.weight", float_to_bf16(1e6f));
  EXPECT_THAT(error_of({.input = folder / "large", .output = folder / "out", .weights = Form::kF16}), HasSubstr("which f16 cannot hold"));
  EXPECT_EQ(error_of({.input = folder / "large", .output = folder / "out", .weights = Form::kBf16}), "no error");
}

// ---- every family ----

class Families : public testing::TestWithParam<const char*> {
 protected:
  fs::path folder() const {
    const std::string name = GetParam();
    return name == "kimi_k3_text" ? test::project_path("tests/golden/kimi_k3_text") : test::shared_path("golden/" + name);
  }
};

/// A quantised matrix used in place gives the very bits of the same numbers stored dense: products take 8 bits in the order of F32, and MXFP4 in
/// that of BF16.
TEST_P(Families, RunInPlaceLikeTheirDecodedNumbers) {
  if (folder().empty()) GTEST_SKIP() << "shared data absent: golden/" << GetParam();
  const TempFolder temp;
  for (const Form form : {Form::kInt8, Form::kMxfp4}) {
    SCOPED_TRACE(std::string(form_name(form)));
    const fs::path out = temp / std::string(form_name(form)), decoded = temp / ("decoded-" + std::string(form_name(form)));
    const Report report = convert_checkpoint({.input = folder(), .output = out, .weights = form});
    EXPECT_FALSE(report.roles.empty());
    write_decoded(out, decoded);
    EXPECT_TRUE(test::bit_equal(logits(out), logits(decoded)));
  }
}

INSTANTIATE_TEST_SUITE_P(Goldens, Families,
                         testing::Values("kimi_k3_text", "kimi_linear", "gpt2", "llama", "llama_tied", "fla_linear_attn", "fla_delta_net",
                                         "fla_gated_deltanet", "fla_kda", "qwen3_next", "qwen3_5"),
                         [](const auto& parameter) { return std::string(parameter.param); });

TEST(Convert, KeepsTensorsThatTheTextModelDoesNotUse) {
  const auto folder = test::shared_path("golden/kimi_k3_vision");
  if (folder.empty()) GTEST_SKIP() << "shared data absent: golden/kimi_k3_vision";
  const TempFolder temp;
  convert_checkpoint({.input = folder, .output = temp / "out", .weights = Form::kInt8});
  const auto before = value_or_throw(formats::Checkpoint::open(folder)), after = value_or_throw(formats::Checkpoint::open(temp / "out"));
  const auto config = load_model_config(folder.string());
  std::int64_t vision = 0;
  for (const auto& entry : before.entries()) {
    if (!is_unused_tensor(config, entry.name)) continue;
    ++vision;
    const auto* copy = after.find(entry.name);
    ASSERT_NE(copy, nullptr) << entry.name;
    EXPECT_EQ(std::memcmp(before.view(entry).data, after.view(*copy).data, entry.bytes()), 0);
  }
  EXPECT_GT(vision, 10);
}

TEST(Convert, LeavesTheCopyOfATiedHeadOut) {
  const TempFolder folder;
  synthetic::Options options;
  options.edit = [](auto& items) { items.push_back({"lm_head.weight", DType::kBF16, {256, 64}}); };
  synthetic::write_checkpoint(folder / "in", synthetic::config_json({.family = Family::kLlama}), options);
  convert_checkpoint({.input = folder / "in", .output = folder / "out", .weights = Form::kF16});
  const auto after = value_or_throw(formats::Checkpoint::open(folder / "out"));
  EXPECT_EQ(after.find("lm_head.weight"), nullptr);
  EXPECT_EQ(after.find("model.embed_tokens.weight")->dtype, DType::kF16);
}

// ---- shards, interruptions, damage ----

TEST(Shards, SizeIsKept) {
  const TempFolder folder;
  const Report report = convert_checkpoint({.input = kDemo, .output = folder / "out", .shard_bytes = 4 * kMegabyte});
  EXPECT_GT(report.shards, 9);
  const auto before = value_or_throw(formats::Checkpoint::open(kDemo)), after = value_or_throw(formats::Checkpoint::open(folder / "out"));
  EXPECT_EQ(std::ssize(after.shards()), report.shards);
  for (const auto& shard : after.shards()) EXPECT_LE(shard.file.size(), 4 * kMegabyte + 400'000);  // with its header
  ASSERT_EQ(before.entries().size(), after.entries().size());
  for (const auto& entry : before.entries()) {
    EXPECT_EQ(std::memcmp(before.view(entry).data, after.view(*after.find(entry.name)).data, entry.bytes()), 0) << entry.name;
  }
}

TEST(Shards, DoNotDependOnTheNumberOfThreads) {
  const TempFolder folder;
  for (const int threads : {1, 3}) {
    convert_checkpoint({.input = kDemo, .output = folder / std::to_string(threads), .weights = Form::kMxfp4, .threads = threads});
  }
  EXPECT_EQ(files_of(folder / "1"), files_of(folder / "3"));
}

/// Runs a conversion in a child process that kills itself, as kill -9 would, once `bytes` bytes are done.
void convert_and_be_killed(Options options, std::int64_t bytes) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    options.on_progress = [bytes](std::int64_t done, std::int64_t) {
      if (done >= bytes) ::kill(::getpid(), SIGKILL);
    };
    convert_checkpoint(options);
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

TEST(Resume, AfterAKillTheFilesAreTheSame) {
  const TempFolder folder;
  Options options{.input = kDemo, .output = folder / "whole", .weights = Form::kInt8, .shard_bytes = 3 * kMegabyte};
  const Report whole = convert_checkpoint(options);
  options.output = folder / "cut";
  const auto total = 2 * static_cast<std::int64_t>(whole.bytes_after);
  for (const std::int64_t share : {25, 60, 95}) {  // three times, each further on
    convert_and_be_killed(options, total * share / 100);
    EXPECT_FALSE(fs::exists(folder / "cut"));
    EXPECT_TRUE(fs::exists(folder / "cut.partial"));
  }
  const Report resumed = convert_checkpoint(options);
  EXPECT_GE(resumed.shards_resumed, resumed.shards / 2);
  EXPECT_LT(resumed.shards_resumed, resumed.shards);
  EXPECT_EQ(files_of(folder / "cut"), files_of(folder / "whole"));
  EXPECT_FALSE(fs::exists(folder / "cut.partial"));
}

/// Leaves about half of the shards.
void convert_half(Options options) {
  std::atomic<bool> cancelled = false;
  options.cancelled = &cancelled;
  options.on_progress = [&](std::int64_t done, std::int64_t total) { cancelled = done > total / 2; };
  try {
    convert_checkpoint(options);
    ADD_FAILURE() << "was not cancelled";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kCancelled);
  }
}

TEST(Resume, WritesDamagedShardsAgain) {
  const TempFolder folder;
  Options options{.input = kDemo, .output = folder / "whole", .weights = Form::kMxfp4, .shard_bytes = 3 * kMegabyte};
  convert_checkpoint(options);
  options.output = folder / "out";
  convert_half(options);
  // One byte in the middle of a shard that was finished.
  fs::path victim;
  for (const auto& file : fs::directory_iterator(folder / "out.partial")) {
    if (file.path().filename().string().starts_with("model-00002")) victim = file.path();
  }
  ASSERT_FALSE(victim.empty());
  {
    std::fstream file(victim, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(1'000'000);
    const int old = file.get();
    file.seekp(1'000'000);
    file.put(static_cast<char>(old ^ 1));
  }
  const Report report = convert_checkpoint(options);
  EXPECT_GE(report.shards_resumed, 1);
  EXPECT_EQ(files_of(folder / "out"), files_of(folder / "whole"));
}

TEST(Resume, ASourceThatChangedStartsAnew) {
  const TempFolder folder;
  fs::copy(kDemo, folder / "in");
  const Options options{.input = folder / "in", .output = folder / "out", .weights = Form::kInt8, .shard_bytes = 3 * kMegabyte};
  convert_half(options);
  fs::last_write_time(folder / "in/model.safetensors", fs::file_time_type::clock::now());
  EXPECT_EQ(convert_checkpoint(options).shards_resumed, 0);
}

TEST(Resume, AListThatSaysNothingOrNonsense) {
  const TempFolder folder;
  Options options{.input = kDemo, .output = folder / "whole", .weights = Form::kInt8, .shard_bytes = 3 * kMegabyte};
  convert_checkpoint(options);
  options.output = folder / "out";
  for (const char* text : {"", "x", "\n\n", "0123456789abcdef\nmodel-00001-of-00002.safetensors zz\n"}) {
    convert_half(options);
    folder.write("out.partial/conversion.txt", text);
    EXPECT_EQ(convert_checkpoint(options).shards_resumed, 0) << text;
    EXPECT_EQ(files_of(folder / "out"), files_of(folder / "whole"));
    fs::remove_all(folder / "out");
  }
}

TEST(Resume, OtherOptionsStartAnew) {
  const TempFolder folder;
  Options options{.input = kDemo, .output = folder / "out", .weights = Form::kInt8, .shard_bytes = 3 * kMegabyte};
  convert_half(options);
  options.weights = Form::kMxfp4;
  EXPECT_EQ(convert_checkpoint(options).shards_resumed, 0);
  options.output = folder / "fresh";
  convert_checkpoint(options);
  EXPECT_EQ(files_of(folder / "out"), files_of(folder / "fresh"));
}

TEST(Resume, LeavesFoldersOfOthersAlone) {
  const TempFolder folder;
  fs::create_directory(folder / "out.partial");
  folder.write("out.partial/diary.docx", "dear diary");
  EXPECT_THAT(error_of({.input = kDemo, .output = folder / "out"}), HasSubstr("diary.docx"));
  EXPECT_EQ(test::read_file(folder / "out.partial/diary.docx"), "dear diary");
}

TEST(Disk, AFullDiskLeavesNothingUnderTheName) {
  const TempFolder folder;
  Options options{.input = kDemo, .output = folder / "out", .weights = Form::kInt8};
  rlimit old{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &old), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{.rlim_cur = 5 * kMegabyte, .rlim_max = old.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const std::string error = error_of(options);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &old), 0);
  std::signal(SIGXFSZ, handler);
  EXPECT_THAT(error, HasSubstr("cannot write"));
  EXPECT_FALSE(fs::exists(folder / "out"));
  EXPECT_TRUE(fs::is_empty(folder / "out.partial"));
  EXPECT_EQ(error_of(options), "no error");
}

TEST(Output, IsNeverTheInputNorSomethingElse) {
  const TempFolder folder;
  synthetic::write_checkpoint(folder / "in", synthetic::config_json({}));
  const auto before = files_of(folder / "in");
  const auto error = [&](const fs::path& output, bool force) {
    return error_of({.input = folder / "in", .output = output, .weights = Form::kInt8, .force = force});
  };
  EXPECT_THAT(error(folder / "in", true), HasSubstr("is the input or holds it"));
  EXPECT_THAT(error(folder / "in/../in/", true), HasSubstr("is the input or holds it"));
  EXPECT_THAT(error(folder.path(), true), HasSubstr("is the input or holds it"));
  EXPECT_THAT(error("/", true), HasSubstr("cannot be a model folder"));
  fs::create_directory_symlink(folder / "in", folder / "a.partial");  // "a" would be made there, and what lies there be removed
  EXPECT_THAT(error(folder / "a", false), AllOf(HasSubstr("a.partial"), HasSubstr("is the input or holds it")));
  EXPECT_EQ(error(folder / "in/inside", false), "no error");
  fs::remove_all(folder / "in/inside");
  EXPECT_THAT(error(folder / "no/such/place", false), HasSubstr("no such folder"));
  fs::create_directory(folder / "photos");
  folder.write("photos/a.jpg", "x");
  EXPECT_THAT(error(folder / "photos", false), HasSubstr("--force replaces it"));
  EXPECT_THAT(error(folder / "photos", true), HasSubstr("is no model folder"));
  EXPECT_TRUE(fs::exists(folder / "photos/a.jpg"));

  EXPECT_EQ(error(folder / "out", false), "no error");
  EXPECT_THAT(error(folder / "out", false), HasSubstr("exists; --force replaces it"));
  EXPECT_EQ(error(folder / "out/", true), "no error");
  EXPECT_EQ(files_of(folder / "in"), before);
}

TEST(Output, MayBeANameInTheCurrentFolder) {
  const TempFolder folder;
  synthetic::write_checkpoint(folder / "in", synthetic::config_json({}));
  const fs::path old = fs::current_path();
  fs::current_path(folder.path());
  const std::string error = error_of({.input = "in", .output = "out", .weights = Form::kInt8});
  fs::current_path(old);
  EXPECT_EQ(error, "no error");
  EXPECT_TRUE(fs::exists(folder / "out/config.json"));
}

TEST(Output, IsReplacedOnlyByAWholeOne) {
  const TempFolder folder;
  convert_checkpoint({.input = kDemo, .output = folder / "out", .weights = Form::kInt8});
  const auto before = files_of(folder / "out");
  convert_half({.input = kDemo, .output = folder / "out", .weights = Form::kMxfp4, .shard_bytes = 3 * kMegabyte, .force = true});
  EXPECT_EQ(files_of(folder / "out"), before);
  convert_checkpoint({.input = kDemo, .output = folder / "out", .weights = Form::kMxfp4, .shard_bytes = 3 * kMegabyte, .force = true});
  EXPECT_NE(files_of(folder / "out"), before);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder.path()), {}), 1);  // nothing but the output is left
}

TEST(Output, NothingBesideTheOutputIsTouched) {
  const TempFolder folder;
  convert_checkpoint({.input = kDemo, .output = folder / "out", .weights = Form::kInt8});
  fs::create_directory(folder / "out.replaced");
  folder.write("out.replaced/diary.docx", "dear diary");
  fs::rename(folder / "out", folder / "elsewhere");
  fs::create_directory_symlink("elsewhere", folder / "out");
  convert_checkpoint({.input = kDemo, .output = folder / "out", .weights = Form::kMxfp4, .force = true});
  EXPECT_EQ(test::read_file(folder / "out.replaced/diary.docx"), "dear diary");
  EXPECT_TRUE(fs::exists(folder / "elsewhere/config.json"));  // the link is replaced, not what it led to
  EXPECT_FALSE(fs::is_symlink(folder / "out"));
  EXPECT_FALSE(fs::exists(folder / "out.partial"));
}

TEST(Output, OneConversionAtATime) {
  const TempFolder folder;
  fs::create_directory(folder / "out.partial");
  const FolderLock lock(folder / "out.partial");
  EXPECT_THAT(error_of({.input = kDemo, .output = folder / "out"}), HasSubstr("another conversion"));
}

}  // namespace
}  // namespace palimpsest::convert
