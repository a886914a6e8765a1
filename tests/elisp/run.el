;;; run.el --- Run the tests of one file in batch  -*- lexical-binding: t; -*-

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; Run by `make test-elisp', once for each file, so that a hanging or dying
;; Emacs costs one file only:
;;
;;     emacs -Q --batch -L ... -l tests/elisp/run.el FILE [SELECTOR]
;;
;; Only tests that FILE itself defines run, not those of files that it
;; requires.  SELECTOR is an ERT selector, as t or a regexp in quotes.

;;; Code:

(require 'ert)

(defun run-tests-batch-and-exit ()
  "Load the file named on the command line, run its tests and exit."
  (let* ((file (expand-file-name (pop command-line-args-left)))
         (selector (read (or (pop command-line-args-left) "t")))
         (load-prefer-newer t)
         (before (ert-select-tests t t)))
    (load file nil t t)
    (let ((own (seq-filter
                (lambda (test)
                  (equal (file-truename file)
                         (when-let* ((where (symbol-file (ert-test-name test)
                                                         'ert--test)))
                           (file-truename where))))
                (seq-difference (ert-select-tests selector t) before))))
      (if own
          (ert-run-tests-batch-and-exit (cons 'member (mapcar #'ert-test-name
                                                              own)))
        (message "No test in %s" file)
        (kill-emacs 1)))))

(run-tests-batch-and-exit)
;;; run.el ends here
