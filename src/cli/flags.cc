#include "cli/flags.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>

#include "base/check.h"
#include "base/error.h"

namespace palimpsest::cli {
namespace {

using enum Command;
const std::vector<Command> kWithModel = {kRun,  kRecall,   kInspect, kLogits,
                                         kEval, kTokenize, kRender,  kConvert, kPlan, kSelfcheck, kBench, kServe};
const std::vector<Command> kAll = {kRun,      kRecall, kInspect, kLogits,  kEval,
                                   kTokenize, kRender, kPull,    kLineage, kConvert, kPlan, kSelfcheck, kBench, kServe};
const std::vector<Command> kThreaded = {kRun, kRecall, kLogits, kEval, kConvert, kPlan, kSelfcheck, kServe};
const std::vector<Command> kPlanned = {kRun, kRecall, kLogits, kEval,
                                       kPlan, kServe};  // those that a budget can be given
const std::vector<Command> kPassed = {kRun, kRecall, kLogits, kEval, kPlan, kServe};
const std::vector<Command> kCached = {kRun, kRecall, kLogits, kEval, kPlan, kSelfcheck, kBench, kServe};
const std::vector<Command> kSampling = {kRun, kServe};
constexpr double kInt32Max = 2147483647;

// Names are those of llama.cpp where it has the flag. --ids has two entries: `render` has no list
// to read.
const std::vector<Flag> kFlags = {
    {.names = {"-m", "--model"},
     .value = "PATH",
     .target = &Options::model,
     .help = "model folder (Hugging Face layout), a .safetensors file inside one, a .gguf file, or "
             "OWNER/NAME[@REV] of "
             "the Hugging Face hub, which is downloaded unless it is in the cache",
     .commands = kWithModel,
     .required = true},
    {.names = {"-p", "--prompt"},
     .value = "TEXT",
     .target = &Options::prompt,
     .help = "the text; without it and -f, run holds a chat",
     .commands = {kRun, kTokenize}},
    {.names = {"-f", "--file"},
     .value = "FILE",
     .target = &Options::file,
     .help = "read the prompt, text, chat or filler from FILE, byte for byte (-: standard input); "
             "recall: filler.txt of the model if not given",
     .commands = {kRun, kRecall, kEval, kTokenize, kRender}},
    {.names = {"--image"},
     .value = "FILE",
     .target = &Options::images,
     .help = "a picture in front of the text (PNG, JPEG, WebP, GIF, BMP), or in the place of the next placeholder id of --ids; may be repeated. "
             "In a chat a line \"/image FILE\" puts one in front of the next message",
     .commands = {kRun}},
    {.names = {"--image-tokens"},
     .value = "N",
     .target = &Options::image_tokens,
     .help = "shrink pictures of more tokens than about N, instead of more than the model can take; memory is planned for such a picture. "
             "0: none are read",
     .min = 0,
     .max = 1 << 18,
     .commands = {kRun, kPlan, kServe}},
    {.names = {"--image-urls"},
     .value = "HOSTS",
     .target = &Options::image_urls,
     .help = "fetch pictures that requests name by http(s) addresses at these hosts: HOST or HOST:PORT with commas between, * for any. "
             "Addresses that are not public must be in the list themselves. Without it nothing is fetched",
     .commands = {kServe}},
    {.names = {"-sys", "--system", "--system-prompt"},
     .value = "TEXT",
     .target = &Options::system,
     .help = "system message of the chat",
     .commands = {kRun}},
    {.names = {"--ids"},
     .value = "LIST",
     .target = &Options::ids,
     .help = "token ids instead of text: 1,2,3",
     .commands = {kRun, kLogits}},
    {.names = {"--ids"},
     .target = &Options::render_ids,
     .help = "print token ids instead of text",
     .commands = {kRender}},
    {.names = {"--ids-file"},
     .value = "FILE",
     .target = &Options::ids_file,
     .help = "JSON file with a list of id lists",
     .commands = {kLogits}},
    {.names = {"-o", "--output"},
     .value = "FILE",
     .target = &Options::output,
     .help = "safetensors file to write",
     .commands = {kLogits},
     .required = true},
    {.names = {"-o", "--output"},
     .value = "FOLDER",
     .target = &Options::output,
     .help = "model folder to make (a file with --to gguf); FOLDER.partial until it is whole, which "
             "the same command resumes",
     .commands = {kConvert},
     .required = true},
    {.names = {"--weights"},
     .value = "FORM",
     .target = &Options::weights,
     .help = "store weight matrices as bf16, f16, q8 (8-bit integers, one BF16 scale per 32) or "
             "mxfp4 (4 bits, one scale per 32); delicate matrices stay at 16 bits",
     .default_text = "as they are",
     .choices = {"bf16", "f16", "q8", "mxfp4"},
     .commands = {kConvert}},
    {.names = {"--experts"},
     .value = "FORM",
     .target = &Options::experts,
     .help = "the same for the routed experts alone",
     .default_text = "what --weights says",
     .choices = {"bf16", "f16", "q8", "mxfp4"},
     .commands = {kConvert}},
    {.names = {"--to"},
     .value = "FORMAT",
     .target = &Options::to,
     .help = "gguf: write one .gguf file instead of a folder",
     .default_text = "safetensors",
     .choices = {"safetensors", "gguf"},
     .commands = {kConvert}},
    {.names = {"--shard-size"},
     .value = "SIZE",
     .target = &Options::shard_size,
     .help = "most bytes of a file: 500MB, 4GiB; not with --to gguf, which writes one file",
     .default_text = "4GiB",
     .commands = {kConvert}},
    {.names = {"--eval"},
     .value = "FILE",
     .target = &Options::eval_file,
     .help = "print the perplexity of this text before and after",
     .commands = {kConvert}},
    {.names = {"--force"},
     .target = &Options::force,
     .help = "replace what is there if it is a model folder (a .gguf file)",
     .commands = {kConvert}},
    {.names = {"--hidden"},
     .target = &Options::hidden,
     .help = "also write the hidden states of every layer",
     .commands = {kLogits}},

    {.names = {"-n", "--predict", "--n-predict"},
     .value = "N",
     .target = &Options::predict,
     .help = "most tokens to write; -1: until the model stops; 0: read the prompt only",
     .default_text = "-1",
     .min = -1,
     .max = kInt32Max,
     .commands = {kRun}},
    {.names = {"-c", "--ctx-size", "--ctx"},
     .value = "N",
     .target = &Options::ctx_size,
     .help = "tokens of context (eval, convert: of one window)",
     .default_text = "what the model and the memory allow; eval, convert: 4096",
     .min = 0,
     .max = kInt32Max,
     .commands = {kRun, kEval, kConvert, kPlan, kServe}},
    {.names = {"--tokens"},
     .value = "N",
     .target = &Options::tokens,
     .help =
         "eval, convert: score the first N tokens of the text; recall: read about N tokens before "
         "asking",
     .default_text = "eval, convert: all; recall: 4000",
     .min = 2,
     .max = kInt32Max,
     .commands = {kRecall, kEval, kConvert}},
    {.names = {"--bos"},
     .target = &Options::bos,
     .help = "start every window with the model's [BOS], so that every id of the text is scored",
     .commands = {kEval}},

    {.names = {"--raw"},
     .target = &Options::raw,
     .help = "continue the text as it is, without the chat format",
     .commands = {kRun}},
    {.names = {"-j", "--json-schema"}, .value = "JSON", .target = &Options::json_schema, .help = "the answer is JSON that this JSON schema allows (docs/constraints.md); {}: any JSON", .commands = {kRun}},
    {.names = {"-jf", "--json-schema-file"}, .value = "FILE", .target = &Options::json_schema_file, .help = "the same, the schema from FILE", .commands = {kRun}},
    {.names = {"--grammar"}, .value = "GBNF", .target = &Options::grammar, .help = "the answer is a text of this grammar, in the notation of llama.cpp", .commands = {kRun}},
    {.names = {"--grammar-file"}, .value = "FILE", .target = &Options::grammar_file, .help = "the same, the grammar from FILE", .commands = {kRun}},
    {.names = {"--regex"}, .value = "REGEX", .target = &Options::regex, .help = "the answer matches this regular expression, all of it", .commands = {kRun}},
    {.names = {"--reasoning-effort"},
     .value = "EFFORT",
     .target = &Options::reasoning_effort,
     .help = "how much the model is asked to think: off, low, high or max",
     .default_text = "thinking on, nothing asked",
     .choices = {"off", "low", "high", "max"},
     .commands = {kRun, kRender}},
    {.names = {"--show-thinking"},
     .target = &Options::show_thinking,
     .help = "show what the model thinks, on standard error",
     .commands = {kRun}},
    {.names = {"--tools"},
     .value = "FILE",
     .target = &Options::tools,
     .help = "JSON file with the list of tools that the model may call",
     .commands = {kRun, kRender}},
    {.names = {"--print-ids"},
     .target = &Options::print_ids,
     .help = "print token ids instead of text; works without a tokenizer",
     .commands = {kRun}},
    {.names = {"--ignore-eos"},
     .target = &Options::ignore_eos,
     .help = "never choose the tokens that end an answer",
     .commands = {kRun}},

    {.names = {"-s", "--seed"},
     .value = "N",
     .target = &Options::seed,
     .help = "seed of the random numbers; -1: a random one (lineage, selfcheck: 1)",
     .default_text = "-1",
     .min = -1,
     .max = 9e15,
     .commands = {kRun, kRecall, kLineage, kSelfcheck}},
    {.names = {"--temp", "--temperature"},
     .value = "T",
     .target = &Options::temperature,
     .help = "temperature; 0: always the most likely token",
     .default_text = "the model's, else 1",
     .min = 0,
     .max = 1e4,
     .commands = kSampling},
    {.names = {"--top-k"},
     .value = "K",
     .target = &Options::top_k,
     .help = "choose among the K most likely tokens; 0: all",
     .default_text = "the model's, else 0",
     .min = 0,
     .max = kInt32Max,
     .commands = kSampling},
    {.names = {"--top-p"},
     .value = "P",
     .target = &Options::top_p,
     .help = "choose among the most likely tokens that together reach P; 1: all",
     .default_text = "the model's, else 1",
     .min = 0,
     .max = 1,
     .commands = kSampling},
    {.names = {"--min-p"},
     .value = "P",
     .target = &Options::min_p,
     .help = "choose among tokens of at least P times the largest probability; 0: all",
     .default_text = "the model's, else 0",
     .min = 0,
     .max = 1,
     .commands = kSampling},
    {.names = {"--repeat-penalty"},
     .value = "X",
     .target = &Options::repeat_penalty,
     .help = "penalty for tokens among the last 64; 1: none",
     .default_text = "the model's, else 1",
     .min = 1e-6,
     .max = 1e6,
     .commands = kSampling},

    {.names = {"-ub", "--ubatch-size", "--chunk"},
     .value = "N",
     .target = &Options::ubatch,
     .help = "prompt tokens of one pass: more is faster and takes more memory",
     .default_text = "512; outside serve and without --budget, 2048 in sequences of 8192 or more where that pays and memory is free",
     .min = 1,
     .max = 65536,
     .commands = kPassed},
    {.names = {"-t", "--threads"},
     .value = "N",
     .target = &Options::threads,
     .help = "threads; 0: one a core",
     .default_text = "0",
     .min = 0,
     .max = 1024,
     .commands = kThreaded},
    {.names = {"--cache-type"},
     .value = "TYPE",
     .target = &Options::cache_type,
     .help = "what rows of the lists (latents; keys and values) are rounded to: bf16, f32, or q8: "
             "8-bit codes with scales, half of bf16, which changes answers a little (see eval "
             "--compare)",
     .default_text = "bf16",
     .choices = {"bf16", "f32", "q8"},
     .commands = kCached},
    {.names = {"--compare"},
     .target = &Options::compare,
     .help = "with --cache-type or --page-type, run the default types beside them and print how far "
             "the predictions are apart",
     .commands = {kEval}},
    {.names = {"--page-type"},
     .value = "TYPE",
     .target = &Options::page_type,
     .help = "what pages are rounded to after every 64th token: f32, or bf16, which halves the "
             "pages of snapshots and changes answers a little (see eval --compare)",
     .default_text = "f32",
     .choices = {"f32", "bf16"},
     .commands = {kRun, kRecall, kLogits, kEval, kPlan, kSelfcheck, kServe}},
    {.names = {"--activations"},
     .value = "TYPE",
     .target = &Options::activations,
     .help = "how quantised weights are multiplied: with activations rounded to 16 or 8 bits in blocks of 32, or as they are: q16, q8 or f32",
     .default_text = "q16",
     .choices = {"q16", "q8", "f32"},
     .commands = {kRun, kRecall, kLogits, kConvert, kSelfcheck, kBench, kServe}},
    {.names = {"--activations"},
     .value = "TYPE",
     .target = &Options::activations,
     .help = "how quantised weights are multiplied: with activations rounded to 16 or 8 bits in blocks of 32, or as they are: q16, q8 or f32; "
             "all: score the text with each",
     .default_text = "q16",
     .choices = {"q16", "q8", "f32", "all"},
     .commands = {kEval}},

    {.names = {"--device"},
     .value = "NAME",
     .target = &Options::device,
     .help = "what computes and where weights, memories and activations lie: cpu or cuda (the first GPU, Hopper)",
     .default_text = "cpu",
     .choices = {"cpu", "cuda"},
     .commands = {kRun, kRecall, kLogits, kEval, kSelfcheck, kBench, kServe}},
    {.names = {"--random-weights"},
     .value = "SEED",
     .target = &Options::random_weights,
     .help = "the model's shapes with pseudo-random weights: -m needs a config.json only (some are in bench/shapes); prompts are given as --ids",
     .min = 0,
     .max = kInt32Max,
     .commands = {kRun, kLogits, kBench, kServe}},
    {.names = {"--pin"},
     .target = &Options::pin,
     .help = "bind threads to cores (not tried on machines with several memory nodes)",
     .commands = {kRun, kRecall, kLogits, kEval, kBench}},
    {.names = {"--mlock"},
     .target = &Options::mlock,
     .help = "keep the weights from ever leaving memory",
     .commands = {kRun, kRecall, kLogits, kEval, kBench, kServe}},
    {.names = {"--no-mmap"},
     .target = &Options::no_mmap,
     .help = "copy the weights into memory, in huge pages where the system grants them, instead of mapping the files",
     .commands = {kRun, kRecall, kLogits, kEval, kBench, kServe}},

    {.names = {"-p", "--n-prompt"},
     .value = "LIST",
     .target = &Options::bench_prompt,
     .help = "lengths of prompts to read: 512,4096; 0: none",
     .default_text = "512",
     .commands = {kBench}},
    {.names = {"-n", "--n-gen"},
     .value = "LIST",
     .target = &Options::bench_predict,
     .help = "numbers of tokens to write, one by one; 0: none",
     .default_text = "128",
     .commands = {kBench}},
    {.names = {"-t", "--threads"},
     .value = "LIST",
     .target = &Options::bench_threads,
     .help = "numbers of threads: 1,2,4; 0: one a core",
     .default_text = "0",
     .commands = {kBench}},
    {.names = {"-ub", "--ubatch-size", "--chunk"},
     .value = "LIST",
     .target = &Options::bench_ubatch,
     .help = "prompt tokens of one pass",
     .default_text = "512",
     .commands = {kBench}},
    {.names = {"-np", "--parallel"},
     .value = "LIST",
     .target = &Options::bench_sequences,
     .help = "sequences that are written at once; rates count the tokens of all",
     .default_text = "1",
     .commands = {kBench}},
    {.names = {"-d", "--depth"},
     .value = "N",
     .target = &Options::depth,
     .help = "tokens that each sequence has when a row begins: rooms of that many in lists, without contents",
     .default_text = "0",
     .min = 0,
     .max = 1 << 24,
     .commands = {kBench}},
    {.names = {"-r", "--repetitions"},
     .value = "N",
     .target = &Options::repetitions,
     .help = "repetitions of each row, after one that is not counted",
     .default_text = "5",
     .min = 1,
     .max = 1000,
     .commands = {kBench}},
    {.names = {"--sweep"},
     .target = &Options::sweep,
     .help = "vary threads, tokens of a pass and sequences in turn, where no list is given",
     .commands = {kBench}},
    {.names = {"--profile"},
     .target = &Options::profile,
     .help = "also say which ops take the time, from one repetition more",
     .commands = {kBench}},

    {.names = {"--budget"},
     .value = "SIZE",
     .target = &Options::budget,
     .help = "most memory of the whole process, weights included: 24GiB, 800MB; what does not fit "
             "is refused before loading, with what would fit (plan: plan for it)",
     .default_text = "none; plan: what is available",
     .commands = kPlanned},
    {.names = {"--cache-ram"},
     .value = "SIZE",
     .target = &Options::cache_ram,
     .help = "memory for snapshots of earlier moments, so that a prompt that changes is not read "
             "from its start; a bare number counts MiB; 0: none",
     .default_text = "0; run, in chats and with --session or --cache-disk: room for 32; serve: 256MiB, within --budget",
     .commands = {kRun, kPlan, kServe}},
    {.names = {"--cache-disk"},
     .value = "FOLDER",
     .target = &Options::cache_disk,
     .help = "keep snapshots that memory has no room for in FOLDER, while the program runs",
     .commands = {kRun, kServe}},
    {.names = {"--cache-disk-size"},
     .value = "SIZE",
     .target = &Options::cache_disk_size,
     .help = "most bytes there; a bare number counts MiB",
     .default_text = "16GiB",
     .commands = {kRun, kServe}},
    {.names = {"--session"},
     .value = "FILE",
     .target = &Options::session,
     .help = "go on from FILE if it is there, and save to it after each answer: tokens, memories, "
             "snapshots and seed; with --raw alone the text goes on where it ended",
     .commands = {kRun}},
    {.names = {"--session-snapshots"},
     .value = "SIZE",
     .target = &Options::session_snapshots,
     .help = "most bytes of snapshots in that file: the most useful ones go into it, so that an "
             "earlier part can be changed after a restart too; a bare number counts MiB; 0: none",
     .default_text = "1GiB",
     .commands = {kRun}},
    {.names = {"--save-every"},
     .value = "SECONDS",
     .target = &Options::save_every,
     .help = "with --session, save as often while a long prompt is read; 0: after each pass",
     .default_text = "30",
     .min = 0,
     .max = kInt32Max,
     .commands = {kRun}},
    {.names = {"-np", "--parallel"},
     .value = "S",
     .target = &Options::sequences,
     .help = "sequences at once, each with the whole context",
     .default_text = "1",
     .min = 1,
     .max = 4096,
     .commands = {kPlan}},
    {.names = {"-np", "--parallel"},
     .value = "S",
     .target = &Options::parallel,
     .help = "answers computed at once, each with the whole context; more requests wait",
     .default_text = "4",
     .min = 1,
     .max = 4096,
     .commands = {kServe}},
    {.names = {"--host"},
     .value = "ADDRESS",
     .target = &Options::host,
     .help = "address to listen on; one that other machines reach needs a key",
     .default_text = "127.0.0.1",
     .commands = {kServe}},
    {.names = {"--port"},
     .value = "N",
     .target = &Options::port,
     .help = "port to listen on; 0: a free one, which is printed",
     .default_text = "8080",
     .min = 0,
     .max = 65535,
     .commands = {kServe}},
    {.names = {"--api-key"},
     .value = "KEY",
     .target = &Options::api_key,
     .help = "key that clients must send. Other users of this machine can see it: prefer "
             "--api-key-file",
     .commands = {kServe}},
    {.names = {"--api-key-file"},
     .value = "FILE",
     .target = &Options::api_key_file,
     .help = "keys that clients may send, one a line; empty lines and lines with # in front do not "
             "count",
     .commands = {kServe}},
    {.names = {"--allow-remote-without-key"},
     .target = &Options::allow_remote_without_key,
     .help = "let other machines in without any key",
     .commands = {kServe}},
    {.names = {"--no-web"},
     .target = &Options::no_web,
     .help = "do not serve the web page",
     .commands = {kServe}},
    {.names = {"-a", "--alias"},
     .value = "NAME",
     .target = &Options::alias,
     .help = "what the model is called in answers",
     .default_text = "its folder's or file's name",
     .commands = {kServe}},
    {.names = {"--config"},
     .value = "FILE",
     .target = &Options::config,
     .help = "flags from a file of lines 'ctx-size = 8192' (TOML) or a JSON object; environment "
             "variables (PALIMPSEST_CTX_SIZE) go before it, flags before both",
     .commands = {kServe}},
    {.names = {"--sessions-dir"},
     .value = "FOLDER",
     .target = &Options::sessions_dir,
     .help = "let clients save and restore sessions as files in FOLDER; without it /sessions is not there",
     .commands = {kServe}},
    {.names = {"--shutdown-time"},
     .value = "SECONDS",
     .target = &Options::shutdown_seconds,
     .help = "how long answers under way may go on after SIGINT or SIGTERM",
     .default_text = "10",
     .min = 0,
     .max = 86400,
     .commands = {kServe}},
    {.names = {"--device"},
     .value = "NAME",
     .target = &Options::device,
     .help = "also estimate the speed on such devices by their data sheets: h100, h200, a100, "
             "rtx4090",
     .default_text = "cpu",
     .choices = {"cpu", "h100", "h200", "a100", "rtx4090"},
     .commands = {kPlan}},

    {.names = {"--width"},
     .value = "K",
     .target = &Options::width,
     .help = "channels of a key, a multiple of 16",
     .default_text = "32",
     .min = 16,
     .max = 256,
     .commands = {kLineage}},
    {.names = {"--pairs"},
     .value = "N",
     .target = &Options::pairs,
     .help = "most pairs that are stored",
     .default_text = "three times the width",
     .min = 8,
     .max = 2048,
     .commands = {kLineage}},
    {.names = {"--svg"},
     .value = "FILE",
     .target = &Options::svg,
     .help = "also draw the figures into FILE",
     .commands = {kLineage, kPlan, kBench}},
    {.names = {"--include"},
     .value = "GLOB",
     .target = &Options::include,
     .help = "fetch the files whose names match, instead of those the model needs; may be repeated",
     .commands = {kPull}},
    {.names = {"-j", "--jobs"},
     .value = "N",
     .target = &Options::jobs,
     .help = "files to fetch at a time",
     .default_text = "4",
     .min = 1,
     .max = 64,
     .commands = {kPull}},
    {.names = {"--dry-run"},
     .target = &Options::dry_run,
     .help = "list files and sizes, fetch nothing",
     .commands = {kPull}},

    {.names = {"--prompt-tokens"},
     .value = "N",
     .target = &Options::prompt_tokens,
     .help = "tokens of the longest prompt. All rows read about 43 such prompts and write 330 "
             "tokens (--quick: 36 and 170)",
     .default_text = "208 to 1024, what the model reads in about 45 seconds; --quick: 208",
     .min = 24,
     .max = 1e6,
     .commands = {kSelfcheck}},
    {.names = {"--quick"},
     .target = &Options::quick,
     .help = "a short prompt and fewer cases in each row",
     .commands = {kSelfcheck}},

    {.names = {"--control"},
     .target = &Options::control,
     .help = "names of control tokens in the text become these tokens",
     .commands = {kTokenize}},
    {.names = {"--json"},
     .target = &Options::json,
     .help = "print JSON",
     .commands = {kRecall, kInspect, kEval, kTokenize, kPull, kLineage, kPlan, kSelfcheck, kBench}},
    {.names = {"-v", "--verbose"},
     .target = &Options::verbose,
     .help = "say more on standard error",
     .commands = kAll},
};

/// "from 0 to 1", or "at least 1" where the upper end is only there to bound memory.
std::string range_text(const Flag& flag) {
  return flag.max >= 1e4 ? fmt::format("at least {}", flag.min)
                         : fmt::format("from {} to {}", flag.min, flag.max);
}

template <class Number>
Number parse_number(const Flag& flag, std::string_view text, std::string_view kind) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc::result_out_of_range) {
    throw make_error(ErrorCode::kUsage, "{}: {} is out of range, must be {}", flag.name(), text,
                     range_text(flag));
  }
  if (text.empty() || error != std::errc{} || end != text.data() + text.size()) {
    throw make_error(ErrorCode::kUsage, "{}: '{}' is not {}", flag.name(), text, kind);
  }
  // Written so that NaN fails too.
  if (!(static_cast<double>(value) >= flag.min && static_cast<double>(value) <= flag.max)) {
    throw make_error(ErrorCode::kUsage, "{}: {} is out of range, must be {}", flag.name(), text,
                     range_text(flag));
  }
  return value;
}

std::string checked_choice(const Flag& flag, std::string_view text) {
  if (!flag.choices.empty() &&
      std::find(flag.choices.begin(), flag.choices.end(), text) == flag.choices.end()) {
    throw make_error(ErrorCode::kUsage, "{}: '{}' is none of {}", flag.name(), text,
                     fmt::join(flag.choices, ", "));
  }
  return std::string(text);
}

struct Setter {
  const Flag& flag;
  Options& options;
  std::string_view text;

  void operator()(bool Options::*p) const { options.*p = true; }
  void operator()(std::int64_t Options::*p) const { options.*p = integer(); }
  void operator()(std::optional<std::int64_t> Options::*p) const { options.*p = integer(); }
  void operator()(std::optional<double> Options::*p) const {
    options.*p = parse_number<double>(flag, text, "a number");
  }
  void operator()(std::string Options::*p) const { options.*p = checked_choice(flag, text); }
  void operator()(std::optional<std::string> Options::*p) const {
    options.*p = checked_choice(flag, text);
  }
  void operator()(std::vector<std::string> Options::*p) const {
    (options.*p).push_back(checked_choice(flag, text));
  }
  std::int64_t integer() const { return parse_number<std::int64_t>(flag, text, "a whole number"); }
};

}  // namespace

bool Flag::belongs_to(Command command) const {
  return std::find(commands.begin(), commands.end(), command) != commands.end();
}

std::string_view Flag::name() const {
  const auto found = std::find_if(names.begin(), names.end(),
                                  [](std::string_view n) { return n.starts_with("--"); });
  PALIMPSEST_CHECK(found != names.end(), "every flag has a name with two dashes");
  return *found;
}

std::span<const Flag> flag_table() {
  return kFlags;
}

void set_flag(const Flag& flag, Options& options, std::string_view text) {
  std::visit(Setter{flag, options, text}, flag.target);
}

}  // namespace palimpsest::cli
