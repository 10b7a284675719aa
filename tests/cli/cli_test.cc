#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "cli/program.h"
#include "support/golden.h"
#include "support/shared_data.h"
#include "support/temp_folder.h"

namespace palimpsest {
namespace {

using nlohmann::json;
using test::ChildResult;
using test::demo;
using test::on_demo;
using test::palimpsest;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::MatchesRegex;
using ::testing::Not;

std::string tiny() {
  return test::project_path("tests/golden/kimi_k3_text").string();
}

json greedy_golden(std::size_t i) {
  std::ifstream file(test::project_path("models/demo/golden/greedy.json"));
  return json::parse(file).at(i);
}

std::string join_ids(const json& ids) {
  std::string text;
  for (const auto& id : ids) text += (text.empty() ? "" : ",") + id.dump();
  return text;
}

struct TemporaryFile {
  explicit TemporaryFile(const std::string& name, const std::string& text = "")
      : path(std::filesystem::temp_directory_path() /
             ("palimpsest_cli_" + std::to_string(getpid()) + "_" + name)) {
    if (!text.empty()) std::ofstream(path, std::ios::binary) << text;
  }
  ~TemporaryFile() {
    std::error_code ignored;
    std::filesystem::remove(path, ignored);
  }
  std::filesystem::path path;
};

// ---- help and flags ----

TEST(Help, EveryCommandListsItsFlagsWithExamples) {
  const ChildResult overview = palimpsest({"--help"});
  EXPECT_EQ(overview.exit_code, 0);
  const json table = json::parse(palimpsest({"--dump-flags"}).out);
  for (const json& command : table["commands"]) {
    const std::string name = command["name"];
    EXPECT_THAT(overview.out, HasSubstr("\n  " + name));
    const ChildResult help = palimpsest({name, "--help"});
    EXPECT_EQ(help.exit_code, 0);
    EXPECT_THAT(help.err, IsEmpty());
    EXPECT_THAT(help.out, HasSubstr("Examples:\n  palimpsest " + name));
    for (const json& flag : table["flags"]) {
      const bool takes = std::count(flag["commands"].begin(), flag["commands"].end(), name) > 0;
      if (!takes) continue;
      for (const json& flag_name : flag["names"]) {
        EXPECT_THAT(help.out, HasSubstr(flag_name.get<std::string>())) << name;
      }
    }
  }
}

TEST(Help, NoCommandHasANameTwice) {
  const json table = json::parse(palimpsest({"--dump-flags"}).out);
  std::set<std::pair<std::string, std::string>> seen;
  for (const json& flag : table["flags"]) {
    for (const json& command : flag["commands"]) {
      for (const json& name : flag["names"])
        EXPECT_TRUE(seen.emplace(command, name).second) << command << name;
    }
  }
  EXPECT_GT(seen.size(), 60u);
}

TEST(Help, Version) {
  EXPECT_THAT(palimpsest({"--version"}).out, HasSubstr("palimpsest "));
}

/// Wrong use: exit code 2, nothing on standard output, and a text with these parts.
void expect_usage_error(const std::vector<std::string>& arguments,
                        const std::vector<std::string>& parts) {
  const ChildResult result = palimpsest(arguments);
  EXPECT_EQ(result.exit_code, 2) << result.err;
  EXPECT_THAT(result.out, IsEmpty());
  EXPECT_THAT(result.err, HasSubstr("palimpsest: error: "));
  for (const std::string& part : parts) EXPECT_THAT(result.err, HasSubstr(part));
}

TEST(Usage, UnknownFlagsAndCommands) {
  expect_usage_error({}, {"--help"});
  expect_usage_error({"walk"}, {"unknown command 'walk'", "run, recall, inspect"});
  expect_usage_error({"-m", demo()}, {"a command comes first"});
  expect_usage_error(on_demo({"run", "--temperatur", "1"}),
                     {"unknown flag '--temperatur'", "did you mean --temperature?"});
  expect_usage_error(on_demo({"run", "-zz", "99"}), {"unknown flag '-zz'"});
  expect_usage_error(on_demo({"run", "-q"}), {"unknown flag '-q'"});
  expect_usage_error(on_demo({"inspect", "-p", "x"}),
                     {"unknown flag '-p' of 'palimpsest inspect'"});
  expect_usage_error(on_demo({"run", "-p", "x", "stray"}), {"'stray'"});
  expect_usage_error({"run", "-p", "x"}, {"needs -m PATH"});
  expect_usage_error({"logits", "-m", demo(), "--ids", "1"}, {"needs -o FILE"});
  expect_usage_error(on_demo({"run", "-p"}), {"--prompt"});
}

TEST(Usage, ValuesOutOfRangeNameFlagValueAndRange) {
  expect_usage_error(on_demo({"run", "-p", "x", "--activations", "all"}),
                     {"--activations", "'all'", "q16, q8, mxfp8, f32"});
  expect_usage_error(on_demo({"run", "-p", "x", "--top-p", "1.5"}),
                     {"--top-p", "1.5", "from 0 to 1"});
  expect_usage_error(on_demo({"run", "-p", "x", "--temp", "nan"}), {"--temp", "nan"});
  expect_usage_error(on_demo({"run", "-p", "x", "--temp", "hot"}),
                     {"--temp", "'hot' is not a number"});
  expect_usage_error(on_demo({"run", "-p", "x", "--top-k", "-3"}), {"--top-k", "-3"});
  expect_usage_error(on_demo({"run", "-p", "x", "--top-k", "5000"}), {"top_k is 5000", "4096"});
  expect_usage_error(on_demo({"run", "-p", "x", "-n", "99999999999999999999"}),
                     {"--predict", "out of range", "from -1 to 2147483647"});
  expect_usage_error(on_demo({"run", "-p", "x", "-ub", "0"}), {"--ubatch-size", "at least 1"});
  expect_usage_error(on_demo({"run", "-p", "x", "--cache-type", "q4"}),
                     {"--cache-type", "'q4'", "bf16, f32, q8"});
  expect_usage_error(on_demo({"run", "-p", "x", "--reasoning-effort", "medium"}),
                     {"off, low, high, max"});
  expect_usage_error(on_demo({"serve", "--cpu-moe"}), {"--cpu-moe", "--device cuda"});
  expect_usage_error(on_demo({"plan", "--device", "h200", "-ngl", "3"}), {"--gpu-layers", "--device cuda"});
  expect_usage_error(on_demo({"run", "--device", "cuda", "--host-experts", "compute"}), {"--host-experts", "--cpu-moe or --gpu-layers"});
  expect_usage_error(on_demo({"bench", "--device", "cuda", "--cpu-moe", "--host-experts", "cpu"}), {"--host-experts", "auto, compute, stream"});
  expect_usage_error(on_demo({"plan", "--device", "cuda", "--gpu-layers", "8", "--host-experts", "compute"}), {"--host-experts compute: no routed experts"});
  expect_usage_error(on_demo({"plan", "--device", "cuda", "--gpu-layers", "9"}), {"between 0 and 8", "not 9"});
}

TEST(Usage, Prompts) {
  expect_usage_error(on_demo({"run", "-p", ""}), {"the prompt is empty"});
  expect_usage_error(on_demo({"run", "-f", "/dev/null"}), {"the prompt is empty"});
  expect_usage_error(on_demo({"run", "-p", "x", "-f", "y"}), {"not by both"});
  expect_usage_error(on_demo({"run", "--raw"}), {"--raw needs a prompt"});
  expect_usage_error(on_demo({"run", "--ids", "1", "-p", "x"}), {"--ids"});
  expect_usage_error(on_demo({"run", "--ids", ""}), {"--ids: the list is empty"});
  expect_usage_error(on_demo({"run", "--ids", "1,x,3"}), {"'x' (number 2)"});
  expect_usage_error(on_demo({"run", "--ids", "1,-2"}), {"'-2'"});
  expect_usage_error(on_demo({"run", "--raw", "-p", "x", "-sys", "y"}), {"--system"});
}

/// Failures that are not wrong use: exit code 1.
void expect_failure(const std::vector<std::string>& arguments,
                    const std::vector<std::string>& parts) {
  const ChildResult result = palimpsest(arguments);
  EXPECT_EQ(result.exit_code, 1) << result.err;
  EXPECT_THAT(result.out, IsEmpty());
  for (const std::string& part : parts) EXPECT_THAT(result.err, HasSubstr(part));
}

TEST(Failure, NamesTheThingAndTheNumbers) {
  expect_failure({"run", "-m", "/nowhere", "-p", "x"}, {"/nowhere"});
  expect_failure(on_demo({"run", "-f", "/nowhere/prompt"}), {"/nowhere/prompt", "No such file"});
  expect_failure(on_demo({"run", "-f", "/tmp"}), {"/tmp"});
  expect_failure(on_demo({"run", "-f", "/dev/zero"}), {"/dev/zero: has more than 1073741824 bytes"});
  expect_failure(on_demo({"run", "--ids", "1,4096"}), {"4096"});
  expect_failure(on_demo({"run", "--ids", "1,2,3,4,5", "-c", "4"}), {"5 tokens", "4"});
  expect_failure(on_demo({"logits", "--ids", "5000", "-o", "/tmp/never"}), {"5000", "4096"});
  expect_failure({"run", "-m", tiny(), "-p", "x"}, {"no tokenizer"});
  expect_failure({"run", "-m", tiny(), "--ids", "1"}, {"--print-ids"});
  expect_failure({"tokenize", "-m", tiny(), "-p", "x"}, {"no tokenizer"});
}

TEST(Failure, OutputsThatCannotBeWrittenAreFoundFirst) {
  expect_failure(on_demo({"logits", "--ids", "1", "-o", "/nowhere/x.safetensors"}),
                 {"/nowhere/x.safetensors", "cannot be written"});
  expect_failure(on_demo({"logits", "--ids", "1", "-o", "/tmp"}), {"is a folder"});
  const ChildResult full = palimpsest(on_demo({"tokenize", "-p", "x"}), "", "/dev/full");
  EXPECT_EQ(full.exit_code, 1);
  EXPECT_THAT(full.err, HasSubstr("standard output: No space left"));
}

// ---- run ----

TEST(Run, RawContinuationIsTheRecordedTextAndNothingElse) {
  const json golden = greedy_golden(0);
  const ChildResult result = palimpsest(on_demo({"run", "--raw", "-p", golden["prompt_text"], "-n",
                                                 "64", "--temp", "0", "--cache-type", "f32"}));
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.out, golden["text"].get<std::string>());
  EXPECT_THAT(result.err,
              AllOf(HasSubstr("tokens/s"), HasSubstr("state "), HasSubstr("peak memory")));
}

TEST(Run, WeightsCopiedOrLockedOrThreadsPinnedGiveTheSameAnswer) {
  const std::vector<std::string> plain = {"run", "-m", tiny(), "--ids", "1,2,3", "--print-ids", "--temp", "0", "-n", "8"};
  const std::string expected = palimpsest(plain).out;
  for (const std::vector<std::string>& flags : {std::vector<std::string>{"--no-mmap"}, {"--no-mmap", "--pin", "-t", "3"}, {"--mlock"}}) {
    std::vector<std::string> arguments = plain;
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    const ChildResult result = palimpsest(arguments);
    // Where little may be locked, the refusal says how much.
    if (flags.front() == "--mlock" && result.exit_code == 1) {
      EXPECT_THAT(result.err, HasSubstr("ulimit -l"));
    } else {
      EXPECT_EQ(result.out, expected) << flags.front() << result.err;
    }
  }
}

TEST(Run, OnADeviceTheTextIsTheSameOrWhatIsMissingIsSaid) {
  const std::vector<std::string> arguments = {"run", "-p", "Once upon a time", "-n", "12", "--temp", "0"};
  std::vector<std::string> there = on_demo(arguments);
  there.insert(there.end(), {"--device", "cuda"});
  const ChildResult cuda = palimpsest(there);
  if (cuda.exit_code == 0) {
    EXPECT_EQ(cuda.out, palimpsest(on_demo(arguments)).out);
  } else {
    EXPECT_EQ(cuda.exit_code, 1);
    EXPECT_THAT(cuda.err, HasSubstr("no CUDA device: "));
  }
  there.push_back("--mlock");
  EXPECT_THAT(palimpsest(there).err, AnyOf(HasSubstr("no CUDA device: "), HasSubstr("neither held nor locked")));
  there.back() = "--device";
  there.push_back("tpu");
  const ChildResult unknown = palimpsest(there);
  EXPECT_EQ(unknown.exit_code, 2);
  EXPECT_THAT(unknown.err, HasSubstr("--device"));
}

TEST(Run, IdsInIdsOutWithoutATokenizer) {
  const json golden = greedy_golden(3);
  const ChildResult result =
      palimpsest(on_demo({"run", "--ids", join_ids(golden["prompt_ids"]), "--print-ids", "--temp",
                          "0", "--cache-type", "f32", "-ub", "5"}));
  EXPECT_EQ(result.out, join_ids(golden["tokens"]) + "\n");
  const ChildResult plain =
      palimpsest({"run", "-m", tiny(), "--ids", "1,2,3", "--print-ids", "--temp", "0", "-n", "4"});
  EXPECT_EQ(plain.exit_code, 0) << plain.err;
  EXPECT_EQ(std::count(plain.out.begin(), plain.out.end(), ','), 3) << plain.out;
}

TEST(Run, ChatAnswersWithTheResponseAlone) {
  const ChildResult result =
      palimpsest(on_demo({"run", "-sys", "The password of Alder House is 48213.", "-p",
                          "What is the password of Alder House?", "--temp", "0"}));
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.out, "The password of Alder House is 48213.");
}

TEST(Run, PipedLinesAreTurnsThatComputeOnlyWhatIsNew) {
  const ChildResult result =
      palimpsest(on_demo({"run", "--temp", "0", "--reasoning-effort", "off"}),
                 "The password of Pine Tower is 90417.\n\nThe password of Pine Tower is now 33586. "
                 "What is the password "
                 "of Pine Tower?\n");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("\nThe password of Pine Tower is 33586.\n"));
  EXPECT_THAT(result.err, AllOf(HasSubstr(" cached, "), HasSubstr(" computed")));
}

TEST(Run, SeedsNameTheText) {
  const auto write = [](const std::string& seed) {
    return palimpsest(on_demo({"run", "--raw", "-p", "The old man", "-n", "20", "--seed", seed}))
        .out;
  };
  EXPECT_EQ(write("7"), write("7"));
  EXPECT_NE(write("7"), write("8"));
}

TEST(Run, AnswersKeepToSchemasGrammarsAndExpressions) {
  const auto out = [](std::vector<std::string> arguments) {
    const std::vector<std::string> all = {"run", "--temp", "0.8", "--seed", "3", "-n", "200", "-p", "Well?"};
    arguments.insert(arguments.begin(), all.begin(), all.end());
    const ChildResult result = palimpsest(on_demo(arguments));
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result.out;
  };
  EXPECT_THAT(out({"--raw", "--regex", " [a-z]{4}\\."}), MatchesRegex(" [a-z]{4}\\."));
  EXPECT_THAT(out({"--reasoning-effort", "off", "--grammar", "root ::= (\"yes\" | \"no\") \"!\""}),
              MatchesRegex("(yes|no)!\n?"));
  const TemporaryFile schema("answer_schema.json", R"({"type": "array", "items": {"type": "integer", "maximum": 9}, "minItems": 2, "maxItems": 2})");
  const json list = json::parse(out({"--reasoning-effort", "off", "-jf", schema.path.string()}));
  ASSERT_EQ(list.size(), 2U);
  EXPECT_LE(list[0].get<int>(), 9);
  expect_usage_error(on_demo({"run", "-p", "x", "--regex", "a", "-j", "{}"}), {"--regex", "--json-schema", "one form"});
  expect_usage_error(on_demo({"run", "-p", "x", "--regex", "a", "--ignore-eos"}), {"--ignore-eos"});
  expect_failure(on_demo({"run", "-p", "x", "--regex", "(a"}), {"--regex", "not closed"});
  expect_failure(on_demo({"run", "-p", "x", "-j", R"({"not": {}})"}), {"--json-schema", "#: not is not supported"});
}

TEST(Run, PromptsAreTakenByteForByteAndMayLookLikeFlags) {
  TemporaryFile file("prompt", "The old man ");
  const auto first =
      palimpsest(on_demo({"run", "--raw", "-f", file.path.string(), "-n", "8", "--temp", "0"}));
  const auto second =
      palimpsest(on_demo({"run", "--raw", "-f", "-", "-n", "8", "--temp", "0"}), "The old man ");
  EXPECT_EQ(first.out, second.out);
  EXPECT_EQ(palimpsest(on_demo({"run", "--raw", "-p", "-sys", "-n", "1", "--temp", "0"})).exit_code,
            0);
  EXPECT_EQ(palimpsest(on_demo({"run", "--raw", "-p", "x", "-n", "0"})).out, "");
}

// ---- signals ----

/// Starts a long answer, sends SIGINT once the first text is there, and `times` times in all.
int interrupted_exit_code(int times) {
  int out[2];
  if (pipe(out) != 0) return -1;
  const pid_t pid = fork();
  if (pid == 0) {
    const int null = open("/dev/null", O_WRONLY);
    dup2(out[1], 1);
    dup2(null, 2);
    execl(PALIMPSEST_BINARY, "palimpsest", "run", "-m", demo().c_str(), "--raw", "-p",
          "The old man", "-n", "100000", "--ignore-eos", nullptr);
    _exit(127);
  }
  close(out[1]);
  char byte = 0;
  EXPECT_EQ(read(out[0], &byte, 1), 1);
  for (int i = 0; i < times; ++i) kill(pid, SIGINT);
  char buffer[4096];
  while (read(out[0], buffer, sizeof buffer) > 0) {
  }
  close(out[0]);
  int status = 0;
  waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

TEST(Signals, InterruptsEndWithTheirOwnCode) {
  EXPECT_EQ(interrupted_exit_code(1), 130);
  EXPECT_EQ(interrupted_exit_code(2), 130);
}

// ---- the other commands ----

TEST(Inspect, JsonHasParametersLayersAndState) {
  const ChildResult result = palimpsest(on_demo({"inspect", "--json"}));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const json facts = json::parse(result.out);
  EXPECT_EQ(facts["family"], "kimi_k3");
  EXPECT_EQ(facts["layers"].size(), 8u);
  EXPECT_EQ(facts["layers"][3]["mixer"], "mla");
  EXPECT_EQ(facts["layers"][0]["ffn"], "dense");
  EXPECT_EQ(facts["tensors"]["text"], 1556);
  // Three heads of 128 x 128 in F32 and three tails of 3 x 384, in six layers; two lists of 256 +
  // 64 BF16 values.
  EXPECT_EQ(facts["state"]["bytes_per_sequence"], 6 * (3 * 128 * 128 + 3 * 3 * 384) * 4);
  EXPECT_EQ(facts["state"]["bytes_per_token"], 2 * 320 * 2);
  EXPECT_THAT(palimpsest(on_demo({"inspect"})).out, AllOf(HasSubstr("MXFP4"), HasSubstr("active")));
}

TEST(Inspect, ReadsHeadersOnly) {
  const ChildResult result = palimpsest(on_demo({"inspect"}));
  EXPECT_LT(result.peak_rss, 30 << 20) << "the weights alone are 39 MiB";
}

TEST(Logits, AgreeWithTheRecordedOnes) {
  const test::Golden golden(test::project_path("tests/golden/kimi_k3_text/golden.safetensors"));
  test::TempFolder folder;
  json lists = json::array();
  for (int i = 0; i < 3; ++i) {
    lists.push_back(golden.ids("seq" + std::to_string(i) + ".input_ids"));
  }
  folder.write("lists.json", lists.dump());
  const std::string out = (folder / "out.safetensors").string();
  const ChildResult result =
      palimpsest({"logits", "-m", tiny(), "--ids-file", (folder / "lists.json").string(),
                  "--hidden", "--cache-type", "f32", "--activations", "f32", "-ub", "16", "-o", out});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, IsEmpty());
  const test::Golden written(out);
  for (std::size_t i = 0; i < lists.size(); ++i) {
    const std::string number = std::to_string(i), sequence = "seq" + number;
    const auto length = static_cast<std::int64_t>(lists[i].size());
    std::vector<float> rows = written.floats("logits." + number);
    const bool all_rows = golden.has(sequence + ".logits");  // else every fifth
    for (std::size_t t = 0; !all_rows && t * 5 * 240 < rows.size(); ++t) std::copy_n(rows.begin() + static_cast<std::ptrdiff_t>(t * 5 * 240), 240, rows.begin() + static_cast<std::ptrdiff_t>(t * 240));
    const std::vector<float> want = golden.floats(sequence + (all_rows ? ".logits" : ".logits.every5"));
    if (!all_rows) rows.resize(want.size());
    const auto logits = test::worst_difference(rows, want);
    EXPECT_LE(logits.value, 1e-4 * logits.largest) << sequence << " at " << logits.index;
    // [states, length, hidden_size]; of the longer text not all states are recorded.
    const auto shape = written.shape("hidden." + number);
    ASSERT_THAT(shape, ::testing::ElementsAre(11, length, 64));
    const auto all = written.floats("hidden." + number);
    for (std::int64_t state = 0; state < shape[0]; ++state) {
      const std::string key = sequence + ".hidden." + std::to_string(state);
      if (i == 2 && !golden.has(key)) continue;
      const std::vector<float> hidden(all.begin() + state * length * 64, all.begin() + (state + 1) * length * 64);
      const auto worst = test::worst_difference(hidden, golden.floats(key));
      EXPECT_LE(worst.value, 1e-4 * worst.largest) << key << " at " << worst.index;
    }
  }
}

TEST(Logits, MalformedListsNameThePlace) {
  for (const auto& [text, part] : {std::pair{"{", "not JSON"},
                                   {"[]", "list of id lists"},
                                   {"[[1],[]]", "[1]"},
                                   {"[[1,2.5]]", "[0][1]"},
                                   {"[[1],3]", "[1]"},
                                   {"[[99999999999]]", "[0][0]"}}) {
    TemporaryFile lists("bad.json", text);
    expect_failure(on_demo({"logits", "--ids-file", lists.path.string(), "-o", "/tmp/never"}),
                   {lists.path.string(), part});
  }
}

TEST(Tokenize, IdsAndPieces) {
  const json golden = greedy_golden(0);
  const std::string prompt = golden["prompt_text"];
  EXPECT_EQ(palimpsest(on_demo({"tokenize", "-p", prompt})).out,
            join_ids(golden["prompt_ids"]) + "\n");
  const json pieces = json::parse(palimpsest(on_demo({"tokenize", "-p", prompt, "--json"})).out);
  std::string text;
  for (const json& piece : pieces["pieces"]) text += piece.get<std::string>();
  EXPECT_EQ(text, prompt);
  EXPECT_EQ(pieces["ids"], golden["prompt_ids"]);
}

TEST(Tokenize, ControlTokensOnlyWhenAsked) {
  EXPECT_EQ(palimpsest(on_demo({"tokenize", "-p", "<|open|>", "--control"})).out, "3843\n");
  EXPECT_THAT(palimpsest(on_demo({"tokenize", "-p", "<|open|>"})).out, Not(HasSubstr("3843")));
}

TEST(Render, WritesThePromptOfAChat) {
  const json golden = greedy_golden(3);
  TemporaryFile chat(
      "chat.json",
      R"({"messages": [{"role": "user", "content": "The password of Pine Tower is 90417."},
    {"role": "assistant", "content": "I shall remember that."},
    {"role": "user", "content": "The password of Pine Tower is now 33586. What is the password of Pine Tower?"}]})");
  const std::vector<std::string> base = {"render", "-f", chat.path.string(), "--reasoning-effort",
                                         "off"};
  EXPECT_EQ(palimpsest(on_demo(base)).out, golden["prompt_text"].get<std::string>());
  auto with_ids = base;
  with_ids.push_back("--ids");
  EXPECT_EQ(palimpsest(on_demo(with_ids)).out, join_ids(golden["prompt_ids"]) + "\n");
}

TEST(Render, BadChatsNameFileAndField) {
  TemporaryFile chat("bad_chat.json", R"({"messages": [{"role": "emperor", "content": "x"}]})");
  expect_failure(on_demo({"render", "-f", chat.path.string()}),
                 {chat.path.string(), "messages[0]"});
}

TEST(Recall, NeedsAFiller) {
  expect_usage_error({"recall", "-m", tiny()}, {"filler"});
}

TEST(Tokenize, ADamagedGgufFileIsNotOneWithoutATokenizer) {
  const test::TempFolder folder;
  folder.write("cut.gguf", "GGUF");
  const ChildResult result = palimpsest({"tokenize", "-m", folder / "cut.gguf", "-p", "x"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("cut.gguf': truncated"));
}

}  // namespace
}  // namespace palimpsest
