;;; emacs-packages.el --- Install packages into a directory of their own  -*- lexical-binding: t; -*-

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; Loaded by .ci/emacs-deps in batch.  ELISP_PACKAGES names the packages, ELISP_DIR the directory
;; that they go to with what they need.  Only archives that Emacs knows itself are asked, and
;; those that ELPA_ARCHIVES adds ("NAME=LOCATION ..."; a location may be a local directory).

;;; Code:

(require 'package)

(defconst emacs-packages-optional '(package-lint)
  "Packages that Emacs's own archives may lack; lint says so and goes on.")

(setq package-user-dir (expand-file-name (getenv "ELISP_DIR"))
      package-gnupghome-dir (expand-file-name "gnupg" package-user-dir)
      package-native-compile nil)
(dolist (archive (split-string (or (getenv "ELPA_ARCHIVES") "")))
  (pcase-let ((`(,name ,location) (split-string archive "=")))
    (setf (alist-get name package-archives nil nil #'equal)
          (file-name-as-directory location))))

(package-initialize)
(let ((tries 3))
  (while (not (condition-case err
                  (progn (package-refresh-contents) package-archive-contents)
                (error (message "%s" (error-message-string err)) nil)))
    (when (zerop (setq tries (1- tries)))
      (kill-emacs 1))
    (sleep-for 2)))

;; compat first: gptel asks for a version that Emacs has built in, transient for a newer one, and
;; `package-compute-transaction' then drops the newer one from what it installs (seen in 30.1).
;; Descriptions instead of names, as a name stands for the built-in package where there is one.
(dolist (package (cons 'compat (mapcar #'intern (split-string (getenv "ELISP_PACKAGES")))))
  (if-let* ((description (cadr (assq package package-archive-contents))))
      (unless (assq package package-alist)
        (package-install description t))
    (message "%s is in none of: %s (see ELPA_ARCHIVES)"
             package (mapconcat #'car package-archives " "))
    (unless (memq package emacs-packages-optional)
      (kill-emacs 1))))

;;; emacs-packages.el ends here
