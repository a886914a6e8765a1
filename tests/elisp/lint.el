;;; lint.el --- Compile and check gptel-retention  -*- lexical-binding: t; -*-

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; Run by `make lint':
;;
;;     emacs -Q --batch -L ... -l tests/elisp/lint.el -f lint-batch-and-exit
;;
;; Each check takes the files of elisp/ in the order of their `require'
;; forms and returns its findings as lines of text.  All checks run, so
;; that one round shows everything; any finding makes Emacs exit with 1.
;; Nothing is written beside the sources.

;;; Code:

(require 'bytecomp)
(require 'check-declare)
(require 'checkdoc)
(require 'cl-lib)
(require 'package)

(declare-function package-lint-buffer "package-lint" (&optional buffer))
(defvar package-lint-main-file)

(defconst lint--file (or load-file-name buffer-file-name)
  "This file.")

(defconst lint--sources
  (expand-file-name "../../elisp/" (file-name-directory lint--file))
  "The directory of the sources.")

(defconst lint--checks
  '(("byte-compile" . lint-compile)
    ("checkdoc" . lint-checkdoc)
    ("check-declare" . lint-check-declare)
    ("package-lint" . lint-package-lint))
  "Alist of (NAME . FUNCTION).
FUNCTION takes the list of files and returns a list of lines.")

;;; Files

(defun lint--requires (file)
  "Return the names of the features of ours that FILE requires."
  (with-temp-buffer
    (insert-file-contents file)
    (let (names)
      (while (re-search-forward
              "^[^;\n]*(require '\\(gptel-retention[-a-z]*\\)" nil t)
        (push (match-string 1) names))
      (nreverse names))))

(defun lint-files ()
  "Return the source files, each after the ones it requires.
Signal an error if two of them require each other."
  (let (done)
    (cl-labels
        ((visit (file path)
           (when (member file path)
             (error "Circular require: %s"
                    (mapconcat #'file-name-nondirectory
                               (reverse (cons file path)) " -> ")))
           (unless (member file done)
             (dolist (name (lint--requires file))
               (let ((other (expand-file-name (concat name ".el")
                                              lint--sources)))
                 (when (file-exists-p other)
                   (visit other (cons file path)))))
             (push file done))))
      (when (file-directory-p lint--sources)
        (dolist (file (directory-files lint--sources t
                                       "\\`gptel-retention.*\\.el\\'"))
          (visit file nil))))
    (nreverse done)))

(defun lint--place (file &optional line column)
  "Return FILE relative to the project, with LINE and COLUMN if given."
  (concat "elisp/" (file-name-nondirectory file)
          (and line (format ":%d" line))
          (and column (format ":%d" column))))

(defmacro lint--with-file (file &rest body)
  "Evaluate BODY in a buffer that visits FILE in `emacs-lisp-mode'."
  (declare (indent 1))
  `(let ((enable-local-variables :safe)
         (vc-handled-backends nil))     ; where there is no git, it complains
     (with-current-buffer (find-file-noselect ,file)
       (unwind-protect (progn ,@body)
         (set-buffer-modified-p nil)
         (kill-buffer)))))

;;; Byte compilation

(defun lint-compile (files)
  "Compile each of FILES in an Emacs of its own, with warnings as errors.
A fresh Emacs knows only what the file itself requires, so a missing
`require' shows, whatever was compiled before it."
  (let ((target (make-temp-file "lint-" t)))
    (unwind-protect
        (mapcan (lambda (file) (lint--compile-file file target)) files)
      (delete-directory target t))))

(defun lint--compile-file (file target)
  "Compile FILE to directory TARGET in a new Emacs; return what it says."
  (let ((process-environment
         (cons (concat "EMACSLOADPATH="
                       (mapconcat #'directory-file-name
                                  (cl-list* target lint--sources load-path)
                                  path-separator))
               process-environment)))
    (with-temp-buffer
      (unless (eq 0 (call-process
                     (expand-file-name invocation-name invocation-directory)
                     nil t nil "-Q" "--batch" "-l" lint--file "--eval"
                     (format "(lint--compile-child %S %S)" file target)))
        (split-string (buffer-string) "\n" t)))))

(defun lint--compile-child (file target)
  "Compile FILE to directory TARGET and exit: with 1 if there is a warning.
Not `byte-compile-error-on-warn', which stops at the first."
  (let* ((clean t)
         (log byte-compile-log-warning-function)
         (byte-compile-log-warning-function
          (lambda (&rest arguments)
            (setq clean nil)
            (apply log arguments)))
         (byte-compile-dest-file-function
          (lambda (source)
            (expand-file-name (concat (file-name-base source) ".elc")
                              target))))
    (kill-emacs (if (and (byte-compile-file file) clean) 0 1))))

;;; Documentation strings and declarations

(defun lint-checkdoc (files)
  "Return what checkdoc finds in FILES."
  (mapcan
   (lambda (file)
     (lint--with-file file
       (let* (found
              (checkdoc-autofix-flag nil)
              (checkdoc-diagnostic-buffer " *lint-checkdoc*")
              (checkdoc-create-error-function
               (lambda (text start _end &optional _unfixable)
                 (push (format "%s: %s"
                               (lint--place file (and start
                                                      (line-number-at-pos
                                                       start t)))
                               text)
                       found)
                 nil)))
         (checkdoc-current-buffer t)
         (nreverse found))))
   files))

(defun lint-check-declare (files)
  "Return the `declare-function' forms of FILES that are not true."
  (let ((inhibit-message t)
        (message-log-max nil))
    (mapcan
     (lambda (errors)                   ; (LIBRARY (FILE FUNCTION TEXT ...)...)
       (mapcar (lambda (err)
                 (format "%s: %s in %s: %s" (lint--place (nth 0 err))
                         (nth 1 err) (car errors) (nth 2 err)))
               (cdr errors)))
     (apply #'check-declare-files files))))

;;; Packaging

(defun lint-package-lint (files)
  "Return what package-lint finds in FILES, as parts of one package.
Where it cannot be had, say so and find nothing, except under CI."
  (let ((main (expand-file-name "gptel-retention.el" lint--sources)))
    (cond
     ((not (require 'package-lint nil t))
      (if (getenv "CI")
          (list "package-lint is not on the load path")
        (message "package-lint: skipped, not on the load path")
        nil))
     ((not (member main files))
      (list "elisp/gptel-retention.el is missing; nothing else was checked"))
     (t
      (let ((package-archive-contents (lint--known-packages))
            (package-lint-main-file main)
            (text-quoting-style 'grave))
        (mapcan
         (lambda (file)
           (lint--with-file file
             (mapcar (pcase-lambda (`(,line ,column ,type ,text))
                       (format "%s: %s: %s" (lint--place file line column)
                               type text))
                     (package-lint-buffer))))
         files))))))

(defun lint--known-packages ()
  "Return archive contents that hold what is installed here, for want of a network.
That is what Emacs has built in and what is on the load path."
  (let ((package-alist nil))
    (dolist (directory load-path)
      (when (file-directory-p directory)
        (package-load-descriptor directory)))
    (append package-alist
            (mapcar (pcase-lambda (`(,name . ,version))
                      (list name (package-desc-create
                                  :name name :version version
                                  :archive "builtin")))
                    package--builtin-versions))))

;;; Batch

(defun lint-batch-and-exit ()
  "Run all checks over all files, print their findings, exit with 1 if any."
  (let* ((backtrace-on-error-noninteractive nil)
         (files (lint-files))
         (count 0))
    (pcase-dolist (`(,name . ,check) lint--checks)
      (when files
        (let ((found (funcall check files)))
          (dolist (line found)
            (message "[%s] %s" name line))
          (setq count (+ count (length found))))))
    (message "Elisp lint: %d files, %s" (length files)
             (if (zerop count) "clean" (format "%d lines of findings" count)))
    (kill-emacs (if (zerop count) 0 1))))

(provide 'lint)
;;; lint.el ends here
