#!/usr/bin/env python3
"""Tests scripts/check_includes.py on small trees made for it. usage: check_includes_test.py SCRIPTS_FOLDER"""

import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, sys.argv.pop(1))
import check_includes  # noqa: E402


class CheckIncludes(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def errors(self):
        return list(check_includes.check_includes(self.root))

    def test_what_the_table_allows_is_fine(self):
        self.write("src/base/error.h", "")
        self.write("src/kernels/op_args.h", '#include "palimpsest/tensor.h"\n')
        self.write("src/kernels/cpu/add.cc", '#include "kernels/op_args.h"\n#include "base/error.h"\n#include <vector>\n')
        self.assertEqual(self.errors(), [])

    def test_a_kernel_must_not_see_a_model(self):
        self.write("src/model/weights.h", "")
        self.write("src/kernels/cpu/add.cc", '\n#include "model/weights.h"\n')
        self.assertEqual(len(self.errors()), 1)
        self.assertIn("src/kernels/cpu/add.cc:2", self.errors()[0])

    def test_public_headers_count_for_the_folder_behind_them(self):
        self.write("src/state/pool.cc", '#include "palimpsest/model_config.h"\n')
        self.assertEqual(len(self.errors()), 1)

    def test_a_new_folder_must_join_the_table(self):
        self.write("src/surprise/a.cc", "")
        self.assertEqual(len(self.errors()), 1)

    def test_paths_of_a_machine_and_large_files(self):
        path = self.write("docs/a.md", "fine\nsee /" + "home/somebody/model\n")
        large = self.write("data/large.bin", "x" * (check_includes.MAX_BYTES + 1))
        model = self.write("models/demo/model.bin", "x" * (check_includes.MAX_BYTES + 1))
        errors = list(check_includes.check_tracked(self.root, [path, large, model]))
        self.assertEqual(len(errors), 2)
        self.assertIn("docs/a.md:2", errors[0])
        self.assertIn("data/large.bin", errors[1])


if __name__ == "__main__":
    unittest.main()
