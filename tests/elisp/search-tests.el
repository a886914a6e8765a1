;;; search-tests.el --- What was learned  -*- lexical-binding: t; -*-

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; What the scripted backend found, as the buffer of places shows it, and
;; where it leads; learning, resuming, and the model's tools in real gptel.

;;; Code:

(require 'test-helper)
(require 'turn-tests)
(require 'tools-tests)
(require 'ert-x)
(require 'gptel-retention)

(defmacro search-tests-with (script &rest body)
  "Run BODY in a conversation's buffer with a backend that follows SCRIPT.
The backend can do what is done with evidence."
  (declare (indent 1) (debug t))
  `(test-helper-with-backend
       (cons '("initialize"
               . [(:result (:capabilities
                            ["evidence/search" "evidence/expand"
                             "evidence/learn" "evidence/resume"
                             "evidence/sources"]))])
             ,script)
     (let ((buffers (buffer-list)))
       (save-window-excursion
         (unwind-protect
             (with-current-buffer (get-buffer-create "search-tests")
               (setq gptel-retention-id "abc")
               (switch-to-buffer (current-buffer))
               ,@body)
           (dolist (buffer (seq-difference (buffer-list) buffers #'eq))
             (with-current-buffer buffer
               (set-buffer-modified-p nil)
               (setq kill-buffer-hook nil))
             (unless (string-match-p "stderr\\|gptel-retention-[0-9]"
                                     (buffer-name buffer))
               (kill-buffer buffer))))))))

(defun search-tests-hit (&rest more)
  "Return a place, a plist; MORE are properties that come first."
  (append more
          '( :id "c1" :source "s1" :kind "conversation" :event "tool_output"
             :tool "make" :title "Build" :found "words" :words ["gamma"]
             :at 0 :place 0 :line 2 :excerpt "alpha beta\ngamma delta\nomega"
             :time 86400.0)))

(defun search-tests-script (&rest hits)
  "Return a script of a backend that finds HITS."
  `(("evidence/search" . [(:result (:hits ,(vconcat hits)))])))

(defun search-tests-run (&optional query only)
  "Search for QUERY, ONLY here, and return the buffer with the places."
  (let ((asked (length (test-helper-log "evidence/search"))))
    (gptel-retention-search (or query "gamma") only)
    (search-tests-answered asked)))

(defun search-tests-answered (asked)
  "Return the buffer of places, once more than ASKED searches are answered."
  (turn-tests-settle "evidence/search" (1+ asked))
  (let ((buffer (get-buffer "*gptel-retention-search*")))
    (test-helper-wait 3 "the places"
                      (lambda ()
                        (not (string-search
                              "searching"
                              (buffer-local-value 'header-line-format
                                                  buffer)))))
    buffer))

(defun search-tests-idle ()
  "Let what is on its way arrive."
  (let ((end (+ (float-time) 0.3)))
    (while (< (float-time) end)
      (accept-process-output nil 0.02))))

(defun search-tests-text ()
  "Return the text of this buffer."
  (buffer-substring-no-properties (point-min) (point-max)))

(defun search-tests-asked (method)
  "Return the parameters of each METHOD request, without what is empty."
  (mapcar (lambda (params)
            (cl-loop for (key value) on params by #'cddr
                     unless (member value '("" :json-false))
                     collect key and collect value))
          (turn-tests-params method)))

(defun search-tests-rest-of-line ()
  "Return what stands between point and the end of the line."
  (buffer-substring-no-properties (point) (line-end-position)))

(defun search-tests-go ()
  "Search, go to the first place, and return (BUFFER REST MESSAGES).
REST is that of the line at the place."
  (let* ((before (length (test-helper-log "evidence/expand")))
         (said
          (test-helper-messages
            (with-current-buffer (search-tests-run)
              (call-interactively (key-binding "n"))
              (call-interactively (key-binding (kbd "RET"))))
            (when (eq (window-buffer)
                      (get-buffer "*gptel-retention-search*"))
              (turn-tests-settle "evidence/expand" (1+ before))
              (test-helper-wait
               3 "the text"
               (lambda () (string-prefix-p "*gptel-retention-text"
                                           (buffer-name (window-buffer)))))))))
    (with-current-buffer (window-buffer)
      (list (buffer-name) (search-tests-rest-of-line) said))))


;;; The query

(ert-deftest search-filters-are-words-of-the-query ()
  "V5: tool, kind and time limit a search; other words are looked for."
  (with-environment-variables (("TZ" "UTC"))
    (set-time-zone-rule "UTC")
    (unwind-protect
        (let ((gptel-retention-search-hits 7))
          (should
           (equal (gptel-retention-search--params
                   "why tool:make kind:tool_output fail: since:1970-01-02 \
until:1970-02-28 \"kind:x\" tool:" "abc" nil)
                  `( :query "why fail: \"kind:x\" tool:" :conversation "abc"
                     :only :json-false :limit 7 :by "user"
                     :tool "make" :kind "tool_output" :since 86400.0
                     :until ,(* 59 86400.0))))
          (should (eq t (plist-get (gptel-retention-search--params
                                    "this: x" "abc" nil)
                                   :only)))
          (should (eq t (plist-get (gptel-retention-search--params
                                    "x" "abc" t)
                                   :only)))
          (should (equal "" (plist-get (gptel-retention-search--params
                                        "x" nil nil)
                                       :conversation))))
      (set-time-zone-rule nil))))

(ert-deftest search-query-that-cannot-be-meant ()
  "Such a query is refused, and nothing is asked or shown."
  (search-tests-with nil
    (dolist (query '("" "  " "kind:nonsense x" "since:2025-02-30 x"
                     "since:yesterday x" "until:2025-1-1 x" "tool:make"))
      (should-error (gptel-retention-search query) :type 'user-error))
    (setq gptel-retention-id nil)
    (dolist (query '("this: x" "x"))
      (should-error (gptel-retention-search query (equal query "x"))
                    :type 'user-error))
    (should-not (get-buffer "*gptel-retention-search*"))
    (should-not (test-helper-methods))))

(ert-deftest search-asks-about-this-conversation-first ()
  "The conversation of the buffer comes first, with a prefix alone."
  (search-tests-with nil
    (search-tests-run "x")
    (search-tests-run "x" '(4))
    (with-current-buffer "*gptel-retention-search*"
      (search-tests-run "y")
      (let ((asked (length (test-helper-log "evidence/search"))))
        (call-interactively (key-binding "g"))
        (search-tests-answered asked)))

    (should (equal (search-tests-asked "evidence/search")
                   '((:query "x" :conversation "abc" :limit 20 :by "user")
                     (:query "x" :conversation "abc" :only t :limit 20
                      :by "user")
                     (:query "y" :conversation "abc" :limit 20 :by "user")
                     (:query "y" :conversation "abc" :limit 20
                      :by "user"))))))

(ert-deftest search-again-changes-the-query ()
  "`s' reads the query anew, beginning with the last one."
  (search-tests-with nil
    (with-current-buffer (search-tests-run "first" t)
      (cl-letf (((symbol-function 'read-string)
                 (lambda (_prompt initial &rest _) (concat initial " word"))))
        (call-interactively (key-binding "s")))
      (search-tests-answered 1)
      (should (equal header-line-format
                     " first word (this conversation): 0 places")))
    (should (equal (plist-get (nth 1 (turn-tests-params "evidence/search"))
                              :query)
                   "first word"))))


;;; The places

(ert-deftest search-shows-each-place ()
  "V5: title, time, kind, tool, how it was found, id and excerpt."
  (search-tests-with
      (search-tests-script
       (search-tests-hit :words ["gamma" "del" "ega"])
       (search-tests-hit :id "c2" :found "meaning" :words [] :title ""
                         :path "/x/y.log" :event "" :tool "" :kind "file"
                         :time 0.0 :excerpt "one line\n"))
    (with-current-buffer (search-tests-run "gamma 100%")
      (should (derived-mode-p 'special-mode))
      (should (equal header-line-format " gamma 100%%: 2 places"))
      (should (equal (search-tests-text)
                     (format "2 places

Build  %s, tool_output make, words, c1
alpha beta\ngamma delta\nomega

/x/y.log  file, meaning, c2
one line

" (format-time-string "%F %T" 86400.0))))
      (let (shown match)
        (goto-char (point-min))
        (while (setq match (text-property-search-forward 'face 'match t))
          (push (buffer-substring-no-properties
                 (prop-match-beginning match) (prop-match-end match))
                shown))
        (should (equal shown '("del" "gamma")))))))

(ert-deftest search-shows-the-note-in-full ()
  "An empty answer says why it does not mean that there is nothing."
  (let ((note (concat "Nothing was learned.  " (make-string 500 ?x))))
    (search-tests-with `(("evidence/search" . [(:result (:note ,note))]))
      (with-current-buffer (search-tests-run)
        (should (equal (search-tests-text) (concat note "\n\n")))))))

(ert-deftest search-shows-what-went-wrong ()
  "An error of the backend stands where the places would."
  (search-tests-with
      '(("evidence/search" . [(:error (:code -32000 :message "no index"
                                       :data (:code "store")))
                              (:die t)]))
    (with-current-buffer (search-tests-run)
      (should (string-search "no index" (search-tests-text)))
      (should (string-suffix-p "failed" header-line-format)))
    (with-current-buffer (search-tests-run)
      (should (string-search "unavailable" (search-tests-text))))))

(ert-deftest search-needs-a-backend-that-can ()
  "Without one, or with an older one, the user is told at once."
  (test-helper-with-backend nil
    (should-error (gptel-retention-search "x") :type 'user-error))
  (let ((gptel-retention-command '("/nonexistent/program")))
    (gptel-retention-rpc-retry)
    (should-error (gptel-retention-search "x") :type 'user-error)
    (gptel-retention-rpc-retry))
  (should-not (get-buffer "*gptel-retention-search*")))

(ert-deftest search-places-come-in-files-too ()
  "P2: places that no frame holds are read from their file."
  (search-tests-with
      `(("evidence/search"
         . [(:file (:hits_file
                    ,(decode-coding-string
                      (json-serialize
                       (vector (search-tests-hit :title "Büild")))
                      'utf-8)))]))
    (with-current-buffer (search-tests-run)
      (should (string-prefix-p "1 place\n\nBüild  " (search-tests-text))))))

(ert-deftest search-shows-the-last-question ()
  "An answer to an earlier question that comes late is not shown."
  (search-tests-with
      `(("evidence/search"
         . [(:delay 0.5 :result (:note "first"))
            (:result (:note "second"))]))
    (gptel-retention-search "one")
    (with-current-buffer (search-tests-run "two")
      (should (equal (search-tests-text) "second\n\n"))
      (should (string-search "two" header-line-format)))))

(ert-deftest search-does-not-wait ()
  "A slow search does not hold Emacs."
  (search-tests-with '(("evidence/search" . [(:delay 1 :result (:note "x"))]))
    (gptel-retention-rpc-ensure)
    (let ((start (float-time)))
      (gptel-retention-search "x")
      (should (< (- (float-time) start) 0.5)))
    (should (string-suffix-p "searching"
                             (buffer-local-value
                              'header-line-format
                              (get-buffer "*gptel-retention-search*"))))))

(ert-deftest search-moves-from-place-to-place ()
  "`n' and `p' move, the ends are told, `w' copies the id."
  (search-tests-with (search-tests-script (search-tests-hit)
                                          (search-tests-hit :id "c2")
                                          (search-tests-hit :id "c3"))
    (with-current-buffer (search-tests-run)
      (let ((ids (lambda (keys)
                   (mapcar (lambda (key)
                             (call-interactively (key-binding key))
                             (should (bolp))
                             (plist-get (get-text-property
                                         (point) 'gptel-retention-search-hit)
                                        :id))
                           keys))))
        (should (equal (funcall ids '("n" "n" "p" "n" "n"))
                       '("c1" "c2" "c1" "c2" "c3")))
        (should-error (gptel-retention-search-next) :type 'user-error)
        (forward-line 2)
        (should (equal (funcall ids '("p" "p")) '("c2" "c1")))
        (should-error (gptel-retention-search-previous) :type 'user-error)
        (call-interactively (key-binding "w"))
        (should (equal (current-kill 0) "c1"))
        (goto-char (point-min))         ;in front of all, as after a search
        (call-interactively (key-binding "w"))
        (should (equal (current-kill 0) "c1"))
        (should (equal (funcall ids '("n")) '("c2"))))
      (goto-char (point-max))
      (should-error (gptel-retention-search-visit) :type 'user-error))))


;;; Where a place leads

(defun search-tests-at (text &rest more)
  "Go to a place with MORE properties in a buffer with TEXT.
Return what `search-tests-go' does."
  (search-tests-with
      (append (search-tests-script (apply #'search-tests-hit
                                          :conversation "abc" more))
              '(("evidence/expand" . [(:result (:text "gamma stored"
                                                :total 12))])))
    (insert text)
    (goto-char (point-min))
    (search-tests-go)))

(ert-deftest search-goes-to-the-live-buffer ()
  "The place is that of the text, which need not be the same all over."
  (pcase-dolist
      (`(,what ,text ,rest . ,more)
       `((exact "x\nalpha beta\ngamma delta\nomega\n" "gamma delta")
         (nothing-to-do-with-place
          "x\nalpha beta\ngamma delta\nomega\n" "gamma delta" :place 4000)
         (at-the-place "gamma delta 1\ngamma delta 2" "gamma delta 2"
                       :excerpt "gamma delta" :place 14)
         (at-its-word "gamma delta gamma delta." "gamma delta."
                      :excerpt "gamma delta gamma delta" :place 12)
         (dos "alpha beta\ngamma delta\nomega\n" "gamma delta"
              :excerpt "alpha beta\r\ngamma delta\r\nomega")
         (markup "* alpha beta\n- *gamma*, =delta=\n" "gamma*, =delta=")
         (case-of-the-word "gamma delta\nGamma delta" "Gamma delta"
                           :excerpt "Gamma delta")
         (cut-words "the xalpha beta; gamma deltaz" "beta; gamma deltaz"
                    :excerpt "lpha beta gamma del" :words ["beta"])
         (context ,(concat "gamma delta\n" (make-string 20 ?\n)
                           "alpha\n\nbeta\n: gamma delta!\nomega")
                  "gamma delta!" :excerpt "beta\ngamma delta\nomega")
         (other-line "is\n*beta* gamma" "gamma"
                     :excerpt "[tool_output gamma #3]\nbeta gamma\nx")
         (no-words "x\n--\nomega" "omega" :words []
                   :excerpt "alpha\nomega")))
    (ert-info ((symbol-name what))
      (pcase-let ((`(,buffer ,at ,said) (apply #'search-tests-at text more)))
        (should (equal buffer "search-tests"))
        (should (equal at rest))
        (should (equal (and (memq what '(other-line no-words)) t)
                       (and said t)))))))

(ert-deftest search-says-when-a-place-is-not-sure ()
  "Places that read the same are counted; a lone line is told."
  (pcase-dolist
      (`(,text ,said . ,more)
       '(("alpha beta\ngamma delta\nomega; alpha beta\ngamma delta\nomega"
          "1 more places here read the same" :place 9000)
         ("*gamma delta*\n*gamma delta*\n" "1 more places"
          :excerpt "gamma\tdelta")
         ("zeta\ngamma delta" "only this line")))
    (ert-info (text)
      (pcase-let ((`(,buffer ,at ,messages)
                   (apply #'search-tests-at text more)))
        (should (equal buffer "search-tests"))
        (should (string-prefix-p "gamma delta" at))
        (should (= 1 (length messages)))
        (should (string-search said (car messages)))))))

(ert-deftest search-never-goes-to-a-wrong-place ()
  "Where the text is not, the stored text is shown, and that is said."
  (pcase-dolist (`(,text . ,more)
                 '(("nothing like it, but gamma")
                   ("gammadelta\ngamma 1 delta\nxgamma delta\ngamma deltax"
                    :place 3)
                   ("gamma delta\nzeta\ngamma delta")
                   ("" :excerpt "gamma delta")
                   ("1 2\n12" :excerpt "\n1  2 3\n" :words ["1"])
                   ("--- ---\n" :excerpt "\n---+---\n" :words [])))
    (ert-info (text)
      (pcase-let ((`(,buffer ,at ,messages)
                   (apply #'search-tests-at text more)))
        (should (equal buffer "*gptel-retention-text c1*"))
        (should (equal at "gamma stored"))
        (should (equal messages
                       '("[retention] Not found in search-tests: this is \
the stored text")))))))

(ert-deftest search-shows-what-is-hidden ()
  "Narrowing and hidden text do not keep a place from view."
  (search-tests-with
      (append (search-tests-script (search-tests-hit :conversation "abc")))
    (insert "one\nalpha beta\ngamma delta\nomega\n")
    (let ((overlay (make-overlay 6 (point-max))))
      (overlay-put overlay 'invisible t)
      (narrow-to-region 1 3)
      (search-tests-go)
      (should (looking-at-p "gamma"))
      (should-not (invisible-p (point))))))

(ert-deftest search-goes-to-the-file ()
  "A place in a file is visited, at the code point or where the text is."
  (pcase-dolist (`(,coding ,content ,place)
                 '((utf-8-unix "é𝒳 x\nalpha beta\ngamma delta\nomega\n" 16)
                   (utf-8-dos "é𝒳 x\nalpha beta\ngamma delta\nomega\n" 18)
                   (utf-8-unix "edited\nalpha beta\ngamma delta\nomega\n" 0)))
    (ert-with-temp-file file
      (let ((coding-system-for-write coding))
        (write-region content nil file nil 'silent))
      (search-tests-with
          (search-tests-script
           (search-tests-hit :kind "file" :path file :place place
                             :conversation "gone"))
        (pcase-let ((`(,buffer ,at ,said) (search-tests-go)))
          (should (equal buffer (file-name-nondirectory file)))
          (should (equal at "gamma delta"))
          (should-not said))))))

(ert-deftest search-goes-to-the-conversation-before-the-file ()
  "The live buffer is where the text is alive; the file comes next."
  (ert-with-temp-file file
    :text "alpha beta\ngamma delta\nomega\n"
    (dolist (text '("alpha beta\ngamma delta\nomega\n" "Emptied."))
      (search-tests-with
          (search-tests-script
           (search-tests-hit :path file :conversation "abc"))
        (insert text)
        (should (equal (car (search-tests-go))
                       (if (equal text "Emptied.")
                           (file-name-nondirectory file)
                         "search-tests")))))))

(ert-deftest search-visits-no-remote-file ()
  "The name of a remote file, which may be in a store, connects nowhere."
  (search-tests-with
      `(,@(search-tests-script
           (search-tests-hit :path "/search-tests:nowhere:/x"))
        ("evidence/expand" . [(:result (:text "gamma" :total 5))]))
    (let* ((tried nil)
           (file-name-handler-alist
            (cons `("\\`/search-tests:"
                    . ,(lambda (operation &rest args)
                         (pcase operation
                           ('file-remote-p "/search-tests:nowhere:")
                           (_ (push operation tried) (car args)))))
                  file-name-handler-alist)))
      (should (equal (car (search-tests-go))
                     "*gptel-retention-text c1*"))
      (should-not (memq 'file-regular-p tried))
      (should-not (memq 'insert-file-contents tried)))))

(ert-deftest search-shows-a-place-and-stays ()
  "`o' shows the place in another window and stays among the places."
  (search-tests-with (search-tests-script
                      (search-tests-hit :conversation "abc"))
    (insert "x\nalpha beta\ngamma delta\nomega\n")
    (with-current-buffer (search-tests-run)
      (call-interactively (key-binding "n"))
      (call-interactively (key-binding "o")))
    (should (eq (window-buffer) (get-buffer "*gptel-retention-search*")))
    (let ((window (get-buffer-window "search-tests")))
      (should window)
      (should (equal "gamma" (with-current-buffer "search-tests"
                               (goto-char (window-point window))
                               (thing-at-point 'word)))))))

(ert-deftest search-keeps-the-places-in-view ()
  "A place that is gone to does not take the window of the places."
  (search-tests-with (search-tests-script
                      (search-tests-hit :conversation "abc"))
    (insert "x\nalpha beta\ngamma delta\nomega\n")
    (with-current-buffer (search-tests-run)
      (delete-other-windows)
      (gptel-retention-search-next)
      (gptel-retention-search-visit))
    (should (eq (window-buffer) (get-buffer "search-tests")))
    (should (get-buffer-window "*gptel-retention-search*"))))

(defun search-tests-pointed ()
  "Return the id of the place at point in the window of the places."
  (let ((window (get-buffer-window "*gptel-retention-search*")))
    (plist-get (get-text-property (window-point window)
                                  'gptel-retention-search-hit
                                  (window-buffer window))
               :id)))

(ert-deftest search-is-the-next-error ()
  "`next-error' goes through the places from anywhere."
  (search-tests-with
      (search-tests-script
       (search-tests-hit :conversation "abc")
       (search-tests-hit :conversation "abc" :id "c2" :excerpt "second one"
                         :words ["one"] :event "user" :tool ""))
    (insert "x\nalpha beta\ngamma delta\nomega\nsecond one\n")
    (search-tests-run)
    (select-window (get-buffer-window "search-tests"))
    (let ((where (lambda (id)
                   (should (eq (window-buffer) (get-buffer "search-tests")))
                   (should (equal id (search-tests-pointed)))
                   (with-current-buffer (window-buffer)
                     (search-tests-rest-of-line))))
          (inhibit-message t))
      (first-error)
      (should (equal (funcall where "c1") "gamma delta"))
      (next-error)
      (should (equal (funcall where "c2") "one"))
      (should-error (next-error) :type 'user-error)
      (previous-error)
      (should (equal (funcall where "c1") "gamma delta")))))


;;; The stored text

(ert-deftest search-reads-stored-text-in-pages ()
  "The page with the match is read first, others on demand, all exact."
  (let* ((all (apply #'concat (mapcar (lambda (n) (format "line %04d é\n" n))
                                      (number-sequence 0 999))))
         (at (string-search "line 0600" all))
         (page (lambda (from to more)
                 `(:file (:text_file
                          ,(format "[c1: characters %d-%d of 9; x]\n%s"
                                   from to (substring all from to)))
                   :result (:total ,(length all) :more ,more)))))
    (search-tests-with
        `(,@(search-tests-script
             (search-tests-hit :at at :excerpt "line 0600 é"
                               :words ["0600"]))
          ("evidence/expand"
           . [,(funcall page (- at 2000) 9000 9000)
              (:result (:text ,(substring all 9000) :total ,(length all)))]))
      (pcase-let ((`(,buffer ,rest ,said) (search-tests-go)))
        (should (equal rest "line 0600 é"))
        (should-not said)
        (with-current-buffer buffer
          (should buffer-read-only)
          (should-not buffer-file-name)
          (should (equal (format " Build, c1: characters %d to 9000 of %d"
                                 (- at 2000) (length all))
                         header-line-format))
          (should (eq 'match (get-text-property (+ 5 (point)) 'face)))
          (should (equal (search-tests-text)
                         (concat "[Earlier text]\n"
                                 (substring all (- at 2000) 9000)
                                 "\n[More text]")))
          ;; Pressed twice, the button reads one page.
          (let ((button (1- (point-max))))
            (push-button button)
            (push-button button))
          (turn-tests-settle "evidence/expand" 3)
          (search-tests-idle)
          (should (equal "line 0600 é" (search-tests-rest-of-line)))
          (should (equal (search-tests-text)
                         (concat "[Earlier text]\n"
                                 (substring all (- at 2000))))))))))

(ert-deftest search-joins-earlier-pages ()
  "Earlier pages are put in front, without what is shown already."
  (let* ((gptel-retention-search--earlier 1500)
         (all (apply #'concat (mapcar (lambda (n) (format "line %04d\n" n))
                                      (number-sequence 0 499))))
         (at 4500)
         (page (lambda (from)
                 `(:result (:text ,(substring all from (+ from 1500))
                            :total ,(length all) :more ,(+ from 1500))))))
    (search-tests-with
        `(,@(search-tests-script
             (search-tests-hit :at at :excerpt "line 0450" :words ["0450"]))
          ("evidence/expand"
           . [,(funcall page 2500) ,(funcall page 1000) ,(funcall page 0)]))
      (with-current-buffer (car (search-tests-go))
        (dolist (first '(1000 0))
          (push-button (point-min))
          (test-helper-wait 3 "the page"
                            (lambda ()
                              (eql first
                                   (nth 1 gptel-retention-search--page)))))
        (should (equal (search-tests-text)
                       (concat (substring all 0 4000) "\n[More text]")))
        (should (equal (mapcar (lambda (params) (plist-get params :offset))
                               (turn-tests-params "evidence/expand"))
                       '(2500 1000 0)))
        (should (equal (plist-get (car (turn-tests-params "evidence/expand"))
                                  :by)
                       "user"))))))

(ert-deftest search-stored-text-that-is-gone ()
  "What cannot be read is told, and nothing is shown."
  (search-tests-with
      `(,@(search-tests-script (search-tests-hit))
        ("evidence/expand" . [(:error (:code -32000 :message "no such id"
                                       :data (:code "unknown")))]))
    (let ((said (test-helper-messages
                  (with-current-buffer (search-tests-run)
                    (gptel-retention-search-next-error))
                  (turn-tests-settle "evidence/expand" 1)
                  (search-tests-idle))))
      (should (= 1 (length said)))
      (should (string-search "no such id" (car said))))
    (should (eq (window-buffer) (get-buffer "*gptel-retention-search*")))))

(ert-deftest search-calls-nobody-back ()
  "Stored text that comes late does not take the window from the user."
  (search-tests-with
      `(,@(search-tests-script (search-tests-hit))
        ("evidence/expand" . [(:delay 0.3 :result (:text "gamma" :total 5))]))
    (with-current-buffer (search-tests-run)
      (gptel-retention-search-next-error))
    (select-window (get-buffer-window "search-tests"))
    (test-helper-wait 3 "the text"
                      (lambda () (get-buffer "*gptel-retention-text c1*")))
    (search-tests-idle)
    (should (eq (window-buffer) (get-buffer "search-tests")))))


;;; Learning

(defun search-tests-learn (&rest steps)
  "Learn a file of a backend that follows STEPS; return (PARAMS SAID)."
  (search-tests-with `(("evidence/learn" . ,(vconcat steps)))
    (let ((said (test-helper-messages
                  (gptel-retention-learn "~/chat.org")
                  (turn-tests-settle "evidence/learn" 1)
                  (search-tests-idle))))
      (list (turn-tests-params "evidence/learn") said))))

(ert-deftest search-learns-a-file ()
  "V1: what was learned is told, with what is not sure."
  (pcase-let ((`(,params ,said)
               (search-tests-learn
                '(:result (:sources [( :source "s1" :kind "file"
                                       :title "Build" :chunks 3 :chars 9000
                                       :changed t
                                       :warnings ["bounds are cut"])])))))
    (should (equal params `((:path ,(expand-file-name "~/chat.org")))))
    (should (equal said '("[retention] Learned Build: 3 chunks, 9000 \
characters; bounds are cut"))))
  (should (equal (cadr (search-tests-learn
                        '(:result (:sources [( :source "s1" :kind "file"
                                               :chunks 3 :chars 9000)]))))
                 '("[retention] Known already, s1: 3 chunks, 9000 \
characters")))
  (should (equal (cadr (search-tests-learn '(:result (:sources []))))
                 (list (format "[retention] Nothing was learned from %s"
                               (expand-file-name "~/chat.org")))))
  (should (string-search "is a picture"
                         (caadr (search-tests-learn
                                 '(:error (:code -32000
                                           :message "is a picture"
                                           :data (:code "x"))))))))

(ert-deftest search-learns-this-file ()
  "The file of the buffer is learned, saved first; a prefix asks for one."
  (ert-with-temp-file file
    (search-tests-with nil
      (cl-letf (((symbol-function 'y-or-n-p) #'always)
                ((symbol-function 'read-file-name)
                 (lambda (&rest _) "/x/other.org")))
        (with-current-buffer (find-file-noselect file)
          (insert "new")
          (let ((inhibit-message t))
            (call-interactively #'gptel-retention-learn)
            (should-not (buffer-modified-p))
            (let ((current-prefix-arg '(4)))
              (call-interactively #'gptel-retention-learn))))
        (with-current-buffer "search-tests"
          (call-interactively #'gptel-retention-learn)))
      (turn-tests-settle "evidence/learn" 3)
      (should (equal (turn-tests-params "evidence/learn")
                     `((:path ,file) (:path "/x/other.org")
                       (:path "/x/other.org")))))))

(ert-deftest search-learns-no-remote-file ()
  "The backend reads the files of this machine alone."
  (search-tests-with nil
    (should-error (gptel-retention-learn "/ssh:nowhere.invalid:/x.org")
                  :type 'user-error)
    (should-not (test-helper-methods))))


;;; Resuming

(defconst search-tests-sources
  '[(:result (:sources [( :source "s1" :kind "conversation" :title "Same"
                          :conversation "abc" :time 300.0 :chars 10)
                        ( :source "s2" :kind "conversation" :title "Same"
                          :conversation "def" :time 100.0 :chars 20)]))
    (:result (:sources [( :source "s3" :kind "file" :path "/x/chat.org"
                          :title "Same" :time 200.0 :chars 30)]))]
  "Two conversations and a file that were learned, all of one name.")

(ert-deftest search-chooses-among-what-was-learned ()
  "Conversations and files come newest first, each with a name of its own."
  (search-tests-with `(("evidence/sources" . ,search-tests-sources))
    (let (names annotation)
      (cl-letf (((symbol-function 'completing-read)
                 (lambda (_prompt table &rest _)
                   (setq names (all-completions "" table)
                         annotation (funcall
                                     (alist-get 'annotation-function
                                                (cdr (funcall table "" nil
                                                              'metadata)))
                                     "Same (s3)"))
                   (should (eq 'identity
                               (alist-get 'display-sort-function
                                          (cdr (funcall table "" nil
                                                        'metadata)))))
                   "Same (s3)")))
        (should (equal (plist-get (gptel-retention-search--read-source nil)
                                  :source)
                       "s3"))
        (should (equal names '("Same" "Same (s3)" "Same (s2)")))
        (should (equal annotation
                       (format "  file, %s, 30 characters, /x/chat.org"
                               (format-time-string "%F %T" 200.0))))))
    (should (equal (turn-tests-params "evidence/sources")
                   '((:kind "conversation") (:kind "file"))))))

(ert-deftest search-does-not-resume-itself ()
  "The conversation at hand is no choice; without any the user is told."
  (search-tests-with `(("evidence/sources" . ,search-tests-sources))
    (should (equal (mapcar (lambda (source) (plist-get source :source))
                           (gptel-retention-search--sources "abc"))
                   '("s3" "s2"))))
  (search-tests-with nil
    (should-error (gptel-retention-search--read-source nil)
                  :type 'user-error)))

(defun search-tests-resume (&optional here)
  "Resume, HERE or in a new chat; return (BUFFER MESSAGES)."
  (let* (buffer
         (said (test-helper-messages
                 (gptel-retention-resume '(:source "s2" :title "Old\nchat")
                                         here)
                 (setq buffer (window-buffer))
                 (turn-tests-settle "evidence/resume" 1)
                 (search-tests-idle))))
    (list buffer said)))

(defmacro search-tests-with-chats (answer &rest body)
  "Run BODY with gptel, and a backend that resumes with ANSWER."
  (declare (indent 1) (debug t))
  `(search-tests-with (list (cons "evidence/resume" (vector ,answer)))
     (let ((gptel-backend turn-tests-backend)
           (gptel-model 'm)
           (gptel-default-mode 'text-mode)
           (gptel-use-curl t))
       ,@body)))

(ert-deftest search-resumes-in-a-new-chat ()
  "V8: a new chat has the mode on and a conversation that gets the section."
  (search-tests-with-chats '(:result ( :items 12 :lines 20 :rows 30 :skipped 3
                                       :warnings ["the bound was reached"]))
    (pcase-let ((`(,buffer ,said) (search-tests-resume)))
      (should (equal said '("[retention] Old\nchat: the next request has 12 \
findings, 3 did not fit; the bound was reached")))
      (with-current-buffer buffer
        (should (equal (buffer-name) "*Old chat, resumed*"))
        (should gptel-mode)
        (should gptel-retention-mode)
        (should (derived-mode-p 'text-mode))
        (should (equal (buffer-string) (gptel-prompt-prefix-string)))
        (should (equal (gptel-retention-turn-id)
                       "0123456789abcdef0123456789abcdef"))
        ;; A buffer without a file is not the conversation of a directory.
        (should (equal (mapcar (lambda (params) (plist-get params :file))
                               (turn-tests-params "conversation/open"))
                       '("")))
        (gptel-retention-mode -1)))
    (should (equal (turn-tests-params "evidence/resume")
                   '((:conversation "0123456789abcdef0123456789abcdef"
                      :source "s2"))))))

(ert-deftest search-resumes-in-this-chat ()
  "With a prefix argument the chat at hand goes on, and no other buffer."
  (search-tests-with-chats '(:result (:items 0))
    (should-error (search-tests-resume t) :type 'user-error)
    (with-current-buffer "search-tests"
      (text-mode)
      (setq gptel-retention-id "abc")
      (gptel-mode)
      (pcase-let ((`(,buffer ,said) (search-tests-resume t)))
        (should (eq buffer (current-buffer)))
        (should (equal said '("[retention] Old\nchat: there is nothing to \
give to the next request")))
        (should gptel-retention-mode)
        (should (equal (turn-tests-params "evidence/resume")
                       '((:conversation "abc" :source "s2"))))
        (gptel-retention-mode -1)))))

(ert-deftest search-resume-that-fails-is-told ()
  "The new chat stays, and the user knows that it knows nothing."
  (search-tests-with-chats '(:error (:code -32000 :message "no source s2"
                                     :data (:code "unknown")))
    (pcase-let ((`(,buffer ,said) (search-tests-resume)))
      (should (string-search "no source s2" (car said)))
      (with-current-buffer buffer
        (gptel-retention-mode -1)))))

(ert-deftest search-resumed-chat-has-its-tools ()
  "O7: a chat that got its id before its first request has our tools."
  (search-tests-with-chats '(:result (:items 1))
    (let ((gptel-retention-evidence-tools t)
          (gptel-retention-output-tools t))
      (with-current-buffer (car (search-tests-resume))
        (should gptel-retention-search-offered)
        (should gptel-retention-tools-offered)
        (gptel-retention-mode -1)))))


;;; Tools for the model

(ert-deftest search-tools-are-off-by-default ()
  "The model has them from the first request on if that is wanted."
  (should-not (default-value 'gptel-retention-evidence-tools))
  (pcase-dolist
      (`(,wanted ,outputs ,tools ,names)
       '((nil t t ("make" "recall_output" "search_output"))
         (t t t ("make" "recall_output" "search_output"
                 "search_evidence" "expand_evidence"))
         (t nil t ("make" "search_evidence" "expand_evidence"))
         (t t nil ("search_evidence" "expand_evidence"))
         (nil t nil nil)))
    (ert-info ((format "%s %s %s" wanted outputs tools))
      (tools-tests-with [(:text "1.") (:text "2.")] nil
        (unless tools
          (setq gptel-tools nil))
        (let ((gptel-retention-evidence-tools wanted)
              (gptel-retention-output-tools outputs))
          (tools-tests-send "one"))
        ;; Later changes of the option do not count.
        (let ((gptel-retention-evidence-tools (not wanted)))
          (tools-tests-send "two"))
        (should (equal (list names names)
                       (mapcar #'tools-tests-names
                               (tools-tests-requests))))))))

(ert-deftest search-tools-are-remembered-in-the-file ()
  "O7: a saved conversation has its tools again."
  (dolist (mode '(text-mode org-mode))
    (search-tests-with nil
      (ert-with-temp-file file
        (dolist (round '(1 2))
          (with-current-buffer (find-file-noselect file)
            (funcall mode)
            (let ((enable-local-variables :all))
              (hack-local-variables))
            (gptel-mode)
            (gptel-retention-mode)
            (if (= round 2)
                (should gptel-retention-search-offered)
              (setq gptel-retention-id "abc"
                    gptel-retention-search-offered t)
              (insert "x")
              (let ((inhibit-message t))
                (save-buffer)))
            (gptel-retention-mode -1)
            (set-buffer-modified-p nil)
            (kill-buffer)))))))

(ert-deftest search-model-searches-and-expands ()
  "V5, K3: the model gets the backend's text as it is, or one line."
  (let ((gptel-retention-evidence-tools t)
        (long (tools-tests-long 14000)))
    (tools-tests-with
        [(:calls [["search_evidence" (:query "why\nx" :tool "make"
                                      :kind "tool_output" :limit 3.0
                                      :this_conversation t)]])
         (:calls [["search_evidence" (:query "y" :this_conversation :false)]])
         (:calls [["search_evidence" (:query "a\nb")]])
         (:calls [["expand_evidence" (:id "c1" :offset 5)]])
         (:calls [["expand_evidence" (:id "c9")]])
         (:text "Done.")]
        `(("evidence/search"
           . [(:result (:text "FOUND")) (:result (:text "NOTHING, BUT"))
              (:error (:code -32000 :message "secret inner text"
                             :data (:code "x")))])
          ("evidence/expand"
           . [(:file (:text_file ,long))
              (:error (:code -32000 :message "secret" :data (:code "x")))]))
      (tools-tests-send "Go.")
      (should (equal
               (list "FOUND" "NOTHING, BUT"
                     "Error: search_evidence failed and has no result (a b)."
                     long
                     "Error: expand_evidence failed and has no result (c9).")
               (tools-tests-sent)))
      (should-not (tools-tests-saved))
      (should (equal
               '((:query "why\nx"
                  :conversation "0123456789abcdef0123456789abcdef" :only t
                  :tool "make" :kind "tool_output" :limit 3 :cap 0
                  :by "model")
                 (:query "y" :conversation "0123456789abcdef0123456789abcdef"
                  :only :json-false :tool "" :kind "" :cap 0 :by "model")
                 (:query "a\nb"
                  :conversation "0123456789abcdef0123456789abcdef"
                  :only :json-false :tool "" :kind "" :cap 0 :by "model"))
               (turn-tests-params "evidence/search")))
      (should (equal '((:id "c1" :offset 5 :cap 0 :by "model")
                       (:id "c9" :offset 0 :cap 0 :by "model"))
                     (turn-tests-params "evidence/expand"))))))

(ert-deftest search-tools-tell-how-to-read-toon-once ()
  "T6: the first of our tools tells it, and no other."
  (pcase-dolist (`(,outputs . ,teller) '((t . "recall_output")
                                         (nil . "search_evidence")))
    (tools-tests-with [(:text "1.")] nil
      (let ((gptel-retention-evidence-tools t)
            (gptel-retention-output-tools outputs))
        (tools-tests-send "one"))
      (should (equal (list teller)
                     (cl-loop for tool across (plist-get
                                               (car (tools-tests-requests))
                                               :tools)
                              for function = (plist-get tool :function)
                              when (string-search
                                    gptel-retention-tools-toon
                                    (plist-get function :description))
                              collect (plist-get function :name)))))))

(ert-deftest search-menu-has-its-commands ()
  "The menu leads to searching, resuming and learning."
  (pcase-dolist (`(,key . ,command) '(("/" . gptel-retention-search)
                                      ("R" . gptel-retention-resume)
                                      ("L" . gptel-retention-learn)))
    (should (memq command
                  (flatten-tree
                   (transient-get-suffix 'gptel-retention-menu key))))
    (should (commandp command))))

(provide 'search-tests)
;;; search-tests.el ends here
