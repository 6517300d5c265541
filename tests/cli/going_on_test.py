"""Going on where something went wrong on the way: kills between the steps of going back, older commits, ends that move."""
import json
import signal
import unittest

import field_case
import zinf_runner as z
from field_case import ENDLESS, ON_HOST, ON_NVME, sets
from resume_test import ResumeCase

KEEP = ("checkpoint.keep=3", "checkpoint.keep_every=5")
UNVERIFIED = ("io.verify=false",)


class GoingOn(ResumeCase):
    def stopped(self, sections, *settings):
        """A config, and the step that its run in self.folder was stopped at."""
        config, process = self.started(sections, *settings)
        code, err = z.stop(process)
        self.assertEqual(code, 143, err)
        step = self.live(self.folder)[-1]
        self.assertGreater(step, 0)
        return config, step

    def verified(self, folder, *arguments):
        code, out, err = z.run("verify", folder, "--json", *arguments)
        self.assertEqual(code, 0, err)
        return json.loads(out)

    def live(self, folder):
        return sorted(int(file.stem.split("-")[1]) for file in folder.glob("manifest-*.json"))


class Back(GoingOn):
    def test_killed_while_later_commits_are_dropped(self):
        """Whatever is left of them is a whole commit or none: never one whose slot has been written."""
        sections = z.mlp_sections(self.workspace, steps=20)
        for verify in ((), UNVERIFIED):
            settings = sets(ON_NVME, *KEEP, *verify)
            self.trained(sections, *settings)
            whole = self.figures(self.folder)
            files = ["manifest-{}.json"] if verify else ["manifest-{}.json", "pages-{}.bin"]
            for number, (file, age) in enumerate((file, age) for file in files for age in ("older", "newest")):
                with self.subTest(verify=verify, file=file, age=age):
                    config, folder = self.begun(f"back{len(verify)}-{number}", sections)
                    self.goes_on(config, folder, *settings)
                    older, newest = self.live(folder)  # 19, unless step 15 was still being copied then
                    self.assertTrue(older > 10 and newest == 20, (older, newest))
                    name = file.format(older if age == "older" else newest)
                    self.killed(config, folder, "--resume-from", "10", *settings, ZINF_DIE_AFTER_REMOVING=name)
                    there = self.live(folder)
                    self.assertEqual(there, [10] if age == "newest" else [10, 20])
                    self.assertIn(f"resumed after step {there[-1]} of 20", self.goes_on(config, folder, *settings))
                    self.assertEqual(self.figures(folder), whole)

    def test_killed_at_its_new_end_it_is_not_finished(self):
        """The summary of the future that was given up says nothing of the new one."""
        sections = z.mlp_sections(self.workspace, steps=20)
        config, folder = self.begun("end", sections)
        self.goes_on(config, folder, *sets(ON_NVME, *KEEP))
        before = z.summary(folder)["state_hash"]
        other = sets(ON_NVME, *KEEP, "optimizer.params.lr=0.01")
        self.killed(config, folder, "--resume-from", "10", "--allow", *other, ZINF_DIE_AFTER="manifest-20.json")
        self.assertNotIn("this run is finished", self.goes_on(config, folder, "--allow", *other))
        after = z.summary(folder)["state_hash"]
        self.assertNotEqual(after, before)
        found = self.verified(folder)
        self.assertTrue(found["compared_with_summary"])
        self.assertEqual(found["state_hash"], after)


class Ends(GoingOn):
    def test_no_step_is_left(self):
        """A stopped run that is given the steps it has made is finished with them, and says so the next time."""
        sections = z.mlp_sections(self.workspace, steps=ENDLESS)
        settings = sets(ON_HOST, "checkpoint.every=100000")
        config, step = self.stopped(sections, *settings)
        self.assertNotIn("this run is finished", self.goes_on(config, self.folder, "--steps", str(step), *settings))
        self.assertIn(f"this run is finished (step {step})", self.goes_on(config, self.folder, "--steps", str(step), *settings))
        self.assertTrue(self.verified(self.folder)["compared_with_summary"])

    def test_killed_between_its_end_and_its_summary(self):
        """With one slot too, where the manifest goes while the run trains: the end is committed again."""
        sections = z.mlp_sections(self.workspace, steps=6)
        self.trained(sections)
        whole = self.figures(self.folder)
        for slots in (1, 2):
            config, folder = self.begun(f"end{slots}", sections)
            settings = sets(f"checkpoint.slots={slots}")
            self.killed(config, folder, *settings, ZINF_DIE_AFTER="manifest-6.json")
            self.goes_on(config, folder, *settings)
            self.assertEqual(self.figures(folder), whole)
            self.assertEqual(self.live(folder)[-1:], [6])
            self.verified(folder)

    def test_a_model_of_fewer_steps_is_not_the_runs(self):
        config, folder = self.begun("model", z.llama_sections(self.workspace, steps=4))
        self.goes_on(config, folder)
        self.assertTrue((folder / "model").exists())
        self.goes_on(config, folder, "--steps", "6", *sets("export.at_end=false"))
        self.assertFalse((folder / "model").exists())
        self.assertNotIn("this run is finished", self.goes_on(config, folder, "--steps", "6"))
        self.assertTrue((folder / "model").exists())


class Older(GoingOn):
    def test_commits_that_were_skipped_are_gone(self):
        """Their slots are written again: nobody may take them up later, verified or not."""
        sections = z.mlp_sections(self.workspace, steps=22)
        self.trained(sections, *sets(ON_HOST))
        whole = self.figures(self.folder)
        config, folder = self.begun("older", sections)
        settings = sets(ON_HOST, "checkpoint.every=5")
        self.goes_on(config, folder, "--steps", "20", *settings)
        self.assertEqual(self.live(folder), [15, 20])
        (folder / "pages-20.bin").unlink()
        self.assertIn("resumed after step 15 of 18", self.goes_on(config, folder, "--steps", "18", *settings))
        self.assertEqual(self.live(folder), [15, 18])
        self.assertIn("resumed after step 18 of 22", self.goes_on(config, folder, *settings, *sets(*UNVERIFIED)))
        self.assertEqual(self.figures(folder), whole)


class Known(GoingOn):
    def test_the_commit_it_went_on_from_is_known(self):
        """By status.json, by those who read the run, by the last words: though no commit follows for long."""
        sections = z.llama_sections(self.workspace, steps=ENDLESS)
        settings = sets(ON_HOST, "checkpoint.every=100000")
        config, step = self.stopped(sections, *settings)
        process = z.start(config, self.folder, *settings)
        self.assertTrue(z.wait_for_step(self.folder, step + 3, process))
        self.assertEqual(json.loads((self.folder / "status.json").read_text())["last_commit"], step)
        self.assertEqual(self.verified(self.folder)["step"], step)
        # Both at once, so that no step ends between them.
        for number in (signal.SIGSTOP, signal.SIGTERM, signal.SIGINT, signal.SIGCONT):
            process.send_signal(number)
        _, err = process.communicate(timeout=120)
        self.assertIn(process.returncode, (130, 143), err)
        self.assertIn(f"the last commit is step {step}", err)

    def test_the_loss_of_a_run_that_trains(self):
        """With gradients and activations on the drive: the reader has a scratch area of its own."""
        everything = "placement={weights: nvme, optimizer: nvme, gradients: nvme, activations: nvme}"
        _, process = self.started(z.llama_sections(self.workspace, steps=ENDLESS), *sets(everything))
        code, out, err = z.run("verify", self.folder, "--loss", "--json")
        self.assertEqual(code, 0, err)
        self.assertIsNone(process.poll())
        code, err = z.stop(process)
        self.assertEqual(code, 143, err)
        found = json.loads(out)
        logged = {line["step"]: line["loss"] for line in z.metrics(self.folder)}
        self.assertEqual(found["loss_of_next_batch"], logged[found["step"] + 1])
        self.assertEqual([file.name for file in (self.workspace.path / "swap").iterdir() if "scratch" in file.name], [])

    def test_the_loss_of_a_kept_step_when_the_live_ones_are_damaged(self):
        sections = z.mlp_sections(self.workspace, steps=12)
        config, folder = self.begun("damaged", sections)
        self.goes_on(config, folder, *sets(ON_NVME, *KEEP))
        for file in folder.glob("manifest-*.json"):
            file.write_text("torn")
        code, out, err = z.run("verify", folder, "--loss", "--step", "10", "--json")
        self.assertEqual(code, 0, err)
        found = json.loads(out)
        self.assertEqual((found["agree"], found["loss_of_next_batch"]), (True, z.metrics(folder)[10]["loss"]))

    def test_pages_without_checksums_are_counted(self):
        """Frozen weights of a run that began unverified never get one: a flipped bit there is not called whole."""
        sections = z.mlp_sections(self.workspace, steps=4)
        sections["train"]["freeze"] = ["layers.1.*"]
        config, folder = self.begun("frozen", sections)
        self.goes_on(config, folder, "--steps", "2", *sets(ON_NVME, *UNVERIFIED))
        self.assertIn("frozen weights never get any", self.goes_on(config, folder, *sets(ON_NVME)))
        self.assertGreater(self.verified(folder)["pages_without_checksum"], 0)
        _, out, _ = z.run("verify", folder)
        self.assertRegex(out, r"whole as far as can be told: \d+ pages have no checksum")
        config, folder = self.begun("verified", sections)
        self.goes_on(config, folder, *sets(ON_NVME))
        self.assertEqual(self.verified(folder)["pages_without_checksum"], 0)


class Changes(GoingOn):
    def test_threads_change_no_result(self):
        sections = z.mlp_sections(self.workspace, steps=6)
        self.trained(sections)
        config, folder = self.begun("threads", sections)
        self.goes_on(config, folder, "--steps", "3")
        self.assertIn("optimizer.threads: auto -> 1, which changes no result", self.goes_on(config, folder, *sets("optimizer.threads=1")))
        self.assertEqual(self.figures(folder), self.figures(self.folder))

    def test_an_automatic_batch_keeps_its_rows(self):
        """Whatever memory there is now: the rows of a step stay, their cut into micro-batches follows."""
        sections = z.mlp_sections(self.workspace, steps=4, width=256)
        for key in ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "train_batch_size"):
            sections.pop(key, None)
        config, folder = self.begun("rows", sections)
        rows = []
        for steps, device in (("2", "24MiB"), ("4", "5MiB"), ("6", "24MiB")):
            self.goes_on(config, folder, "--steps", steps, *sets(f"memory.device={device}"))
            manifest = json.loads((folder / f"manifest-{steps}.json").read_text().rsplit("\n", 2)[0])
            rows.append((manifest["micro_batch"], manifest["accumulation"]))
        self.assertEqual(len({micro * accumulation for micro, accumulation in rows}), 1, rows)
        self.assertGreater(rows[1][1], rows[0][1], rows)
        self.assertEqual(rows[1], rows[2])

    def test_a_dry_run_tells_whether_it_could_go_on(self):
        """As train itself says it: what may change, what may not, what is done already, how short it may be."""
        config, folder = self.begun("dry", z.mlp_sections(self.workspace, steps=6))
        self.goes_on(config, folder, "--steps", "4")
        for expected, arguments in ((0, ()), (0, sets("io.depth=4")), (2, sets("model.width=32")), (2, sets("optimizer.params.lr=0.5")),
                                    (0, ("--allow", *sets("optimizer.params.lr=0.5"))), (2, ("--steps", "3")), (0, ("--steps", "4"))):
            code, _, err = z.train(config, folder, "--dry-run", *arguments)
            self.assertEqual(code, expected, err)
        self.goes_on(config, folder)
        code, _, err = z.train(config, folder, "--dry-run", *sets("optimizer.params.lr=0.5"))
        self.assertEqual(code, 0, err)


class Fresh(GoingOn):
    def test_what_does_not_fit_drops_nothing(self):
        """The space for the new run is looked at before the old one goes."""
        sections = z.llama_sections(self.workspace, steps=12)
        config, folder = self.begun("fresh", sections)
        self.goes_on(config, folder, *sets(ON_NVME, *KEEP))
        before = sorted(file.name for file in folder.iterdir())
        code, _, err = z.train(config, folder, "--fresh", "--yes", *sets(ON_NVME, "checkpoint.keep=100000000", "checkpoint.keep_every=5"))
        self.assertEqual(code, 3, err)
        self.assertIn("not enough space", err)
        self.assertNotIn("--fresh drops", err)
        self.assertEqual(sorted(file.name for file in folder.iterdir()), before)
        self.assertTrue(self.verified(folder)["compared_with_summary"])
        for step in ("5", "10"):
            self.verified(folder, "--step", step)


if __name__ == "__main__":
    unittest.main(verbosity=2)
