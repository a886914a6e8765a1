;;; test-helper.el --- Fake backend for the tests  -*- lexical-binding: t; -*-

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; Starts fake_server.py as a real process in place of the backend, and reads
;; what it logged.

;;; Code:

(require 'cl-lib)
(require 'ert)
(require 'gptel-retention-rpc)

(defconst test-helper-directory
  (file-name-directory (or load-file-name buffer-file-name))
  "Directory of the tests.")

(defvar test-helper-log nil
  "File with what the fake backend was asked.")

(defvar test-helper-script nil
  "File with the script of the fake backend.")

(defun test-helper-python ()
  "Return the Python to run the fakes with."
  (or (getenv "PYTHON") (executable-find "python3")))

(defun test-helper-write-script (script)
  "Write SCRIPT, an alist of method names and vectors of plists."
  (let ((table (make-hash-table :test #'equal))
        (coding-system-for-write 'binary))
    (pcase-dolist (`(,method . ,steps) script)
      (puthash method steps table))
    (write-region (json-serialize table :null-object :null
                                  :false-object :json-false)
                  nil test-helper-script nil 'silent)))

(defmacro test-helper-with-backend (script &rest body)
  "Run BODY with a fake backend that follows SCRIPT.
SCRIPT is an alist from a method's name to a vector of steps; see
fake_server.py."
  (declare (indent 1) (debug t))
  `(let* ((test-helper-log (make-temp-file "retention-log"))
          (test-helper-script (make-temp-file "retention-script"))
          (gptel-retention-command
           (list (test-helper-python)
                 (expand-file-name "fake_server.py" test-helper-directory)
                 test-helper-script test-helper-log))
          (gptel-retention-store-directory nil)
          (gptel-retention-timeout 1.0)
          (gptel-retention-start-timeout 10))
     (test-helper-write-script ,script)
     (gptel-retention-rpc-retry)
     (unwind-protect
         (progn ,@body)
       (gptel-retention-rpc-shutdown)
       (gptel-retention-rpc-retry)
       (delete-file test-helper-log)
       (delete-file test-helper-script))))

(defun test-helper-log (&optional method)
  "Return what the fake backend was asked, plists, first first.
With METHOD only those requests."
  (with-temp-buffer
    (insert-file-contents test-helper-log)
    (let (all)
      (while (not (eobp))
        (push (json-parse-buffer :object-type 'plist :null-object :null
                                 :false-object :json-false)
              all)
        (skip-chars-forward "\n"))
      (cl-remove-if-not
       (lambda (entry)
         (or (null method) (equal method (plist-get entry :method))))
       (nreverse all)))))

(defun test-helper-methods ()
  "Return the methods that the fake backend was asked, first first."
  (mapcar (lambda (entry) (plist-get entry :method)) (test-helper-log)))

(defun test-helper-wait (seconds what predicate)
  "Wait up to SECONDS until PREDICATE is true; fail telling WHAT otherwise."
  (let ((end (+ (float-time) seconds)))
    (while (and (not (funcall predicate)) (< (float-time) end))
      (accept-process-output nil 0.02))
    (unless (funcall predicate)
      (ert-fail (format "Waited %s s for %s; backend was asked %S"
                        seconds what (ignore-errors (test-helper-methods)))))))

(defmacro test-helper-messages (&rest body)
  "Run BODY and return the messages of this package that it gave."
  (declare (indent 0) (debug t))
  (let ((said (make-symbol "said")))
    `(let (,said)
       (cl-letf* ((message (symbol-function 'message))
                  ((symbol-function 'message)
                   (lambda (format &rest args)
                     (let ((text (and format (apply #'format format args))))
                       (when (and text (string-prefix-p "[retention]" text))
                         (push text ,said))
                       text))))
         ,@body)
       (nreverse ,said))))

(provide 'test-helper)
;;; test-helper.el ends here
